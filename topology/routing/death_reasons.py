"""For which reasons messages can die in a queue."""

from __future__ import annotations

from topology.definitions import Queue
from topology.routing.consumer import delivery_limit
from topology.routing.cycle import Reason
from topology.snapshot import QueueNumbers


def reasons(queue: Queue, numbers: QueueNumbers, version: tuple[int, ...]) -> tuple[Reason, ...]:
    """The reasons for which messages can die in a queue, by its arguments and consumers.

    A queue with a TTL and without consumers is a delay queue: nobody rejects there. A message's
    own expiration is unknown here. Source: RabbitMQ's documentation, “Dead Letter Exchanges”;
    reject-publish refuses new messages and dead-letters none.
    """
    if queue.type == "stream":
        return ()
    is_delay = queue.message_ttl_ms is not None and not numbers.consumers
    found: list[Reason] = []
    if not is_delay:
        found.append("rejected")
    if queue.message_ttl_ms is not None:
        found.append("expired")
    if _drops_when_full(queue):
        found.append("maxlen")
    if not is_delay and delivery_limit(queue, version) is not None:
        found.append("delivery_limit")
    return tuple(found)


def _drops_when_full(queue: Queue) -> bool:
    names = ("x-max-length", "x-max-length-bytes")
    is_bounded = any(queue.arguments.number(name) is not None for name in names)
    return is_bounded and queue.arguments.text("x-overflow") != "reject-publish"
