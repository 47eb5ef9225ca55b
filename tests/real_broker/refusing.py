"""A full queue beside the others, which makes RabbitMQ nack what these take."""

from __future__ import annotations

from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Queue

# Of no message: it is full from the beginning.
FULL = Arguments({"x-max-length": 0, "x-overflow": "reject-publish"})
# What is reported of a nacked message, before the queues that may have it.
SAID = "because “log” is full and rejects messages. It may have arrived in "


def refuse_beside(management: Management, exchange: str, key: str) -> None:
    """What is published there is nacked from now on, whoever takes it."""
    management.declare_queue(Queue("log", arguments=FULL))
    management.bind(Binding(exchange, "log", key))
