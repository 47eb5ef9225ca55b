"""Definitions as resources of the Messaging Topology Operator of RabbitMQ.

Source: api/v1beta1/exchange_types.go, queue_types.go and binding_types.go of the operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from topology.definitions import Binding, Definitions, Exchange, Queue, Thing
from topology.exports.names import NotExportable, resource_name

# A part of a DNS name (RFC 1123).
LONGEST_NAME = 63


def as_kubernetes(things: Definitions, vhost: str) -> str:
    """YAML, for a RabbitmqCluster of the name “rabbitmq”. Raises NotExportable."""
    documents = []
    for thing in things:
        document = {
            "apiVersion": "rabbitmq.com/v1beta1",
            "kind": type(thing).__name__,
            "metadata": {"name": resource_name(thing.identity, "-", LONGEST_NAME)},
            "spec": {
                "vhost": vhost,
                **_spec(thing),
                "rabbitmqClusterReference": {"name": "rabbitmq"},
            },
        }
        documents.append("\n".join(_lines(document)))
    return "\n---\n".join(documents) + "\n"


def _spec(thing: Thing) -> dict[str, Any]:
    arguments = {"arguments": dict(thing.arguments)} if thing.arguments else {}
    match thing:
        case Exchange() | Queue():
            if isinstance(thing, Exchange):
                _check_exchange(thing)
            return {
                "name": thing.name,
                "type": thing.type,
                "durable": thing.durable,
                "autoDelete": thing.auto_delete,
                **arguments,
            }
        case Binding():
            return {
                "source": thing.source,
                "destination": thing.destination,
                "destinationType": "queue" if thing.destination_is_queue else "exchange",
                "routingKey": thing.routing_key,
                **arguments,
            }


def _check_exchange(thing: Exchange) -> None:
    if thing.internal:
        raise NotExportable(
            f"The exchange “{thing.name}” is internal. The Kubernetes topology operator does not "
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
