"""Objects as RabbitMQ's exported definitions have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from topology.definitions import Binding, BrokerObject, Exchange, Queue

Raw: TypeAlias = dict[str, Any]


def raw_object(obj: Exchange | Queue) -> Raw:
    return {**vars(obj), "arguments": dict(obj.arguments)}


def raw_binding(obj: Binding) -> Raw:
    return {
        "source": obj.source,
        "destination": obj.destination,
        "destination_type": "queue" if obj.destination_is_queue else "exchange",
        "routing_key": obj.routing_key,
        "arguments": dict(obj.arguments),
    }


def raw_definitions(objects: Iterable[BrokerObject]) -> dict[str, list[Raw]]:
    """What `rabbitmqctl import_definitions --vhost` and the management page import."""
    everything = list(objects)
    return {
        "exchanges": [raw_object(one) for one in everything if isinstance(one, Exchange)],
        "queues": [raw_object(one) for one in everything if isinstance(one, Queue)],
        "bindings": [raw_binding(one) for one in everything if isinstance(one, Binding)],
    }
