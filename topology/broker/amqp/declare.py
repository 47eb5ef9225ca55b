"""Declaring definitions on a channel."""

from __future__ import annotations

from typing import Any

from topology.definitions import Binding, Definitions


def declare(channel: Any, definitions: Definitions) -> None:
    """Declare in order, waiting for each answer. Raises what pika raises."""
    for exchange in definitions.exchanges:
        channel.exchange_declare(
            exchange.name,
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
        )
    for queue in definitions.queues:
        channel.queue_declare(
            queue.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=dict(queue.arguments),
        )
    for binding in definitions.bindings:
        _bind(channel, binding)


def _bind(channel: Any, binding: Binding) -> None:
    key, arguments = binding.routing_key, dict(binding.arguments)
    if binding.destination_is_queue:
        channel.queue_bind(binding.destination, binding.source, key, arguments)
    else:
        channel.exchange_bind(binding.destination, binding.source, key, arguments)
