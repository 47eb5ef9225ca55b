"""Objects as RabbitMQ's exported definitions have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from topology.definitions import Binding, Exchange, Queue, Thing

Raw: TypeAlias = dict[str, Any]


def raw_queue(thing: Queue) -> Raw:
    return {
        "name": thing.name,
        "durable": thing.durable,
        "auto_delete": thing.auto_delete,
        "arguments": dict(thing.arguments),
    }


def raw_exchange(thing: Exchange) -> Raw:
    return {
        "name": thing.name,
        "type": thing.type,
        "durable": thing.durable,
        "auto_delete": thing.auto_delete,
        "internal": thing.internal,
        "arguments": dict(thing.arguments),
    }


def raw_binding(thing: Binding) -> Raw:
    return {
        "source": thing.source,
        "destination": thing.destination,
        "destination_type": "queue" if thing.destination_is_queue else "exchange",
        "routing_key": thing.routing_key,
        "arguments": dict(thing.arguments),
    }


def raw_definitions(things: Iterable[Thing]) -> dict[str, list[Raw]]:
    """What `rabbitmqctl import_definitions --vhost` and the management page import."""
    everything = list(things)
    return {
        "exchanges": [raw_exchange(one) for one in everything if isinstance(one, Exchange)],
        "queues": [raw_queue(one) for one in everything if isinstance(one, Queue)],
        "bindings": [raw_binding(one) for one in everything if isinstance(one, Binding)],
    }
