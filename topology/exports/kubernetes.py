"""Definitions as resources of the Messaging Topology Operator of RabbitMQ.

Source: api/v1beta1/exchange_types.go, queue_types.go and binding_types.go of the operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.exports.names import NotExportable, resource_name

# A part of a DNS name (RFC 1123).
LONGEST_NAME = 63


def as_kubernetes(objects: Definitions, vhost: str) -> str:
    """YAML, for a RabbitmqCluster of the name “rabbitmq”. Raises NotExportable."""
    documents = []
    for obj in objects:
        document = {
            "apiVersion": "rabbitmq.com/v1beta1",
            "kind": type(obj).__name__,
            "metadata": {"name": resource_name(obj.identity, "-", LONGEST_NAME)},
            "spec": {
                "vhost": vhost,
                **_spec(obj),
                "rabbitmqClusterReference": {"name": "rabbitmq"},
            },
        }
        documents.append("\n".join(_lines(document)))
    return "\n---\n".join(documents) + "\n"


def _spec(obj: BrokerObject) -> dict[str, Any]:
    arguments = {"arguments": dict(obj.arguments)} if obj.arguments else {}
    match obj:
        case Exchange() | Queue():
            if isinstance(obj, Exchange):
                _check_exchange(obj)
            return {
                "name": obj.name,
                "type": obj.type,
                "durable": obj.durable,
                "autoDelete": obj.auto_delete,
                **arguments,
            }
        case Binding():
            return {
                "source": obj.source,
                "destination": obj.destination,
                "destinationType": "queue" if obj.destination_is_queue else "exchange",
                "routingKey": obj.routing_key,
                **arguments,
            }


def _check_exchange(obj: Exchange) -> None:
    if obj.internal:
        raise NotExportable(
            f"The exchange “{obj.name}” is internal. The Kubernetes topology operator does not "
            "support internal exchanges."
        )


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Block style; texts in double quotes, in which YAML reads what JSON writes."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"
