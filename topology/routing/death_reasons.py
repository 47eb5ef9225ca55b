"""For which reasons messages can die in a queue."""

from __future__ import annotations

from topology.definitions import Queue
from topology.routing.consumer import delivery_limit
from topology.routing.cycle import Reason


def find_reasons(
    queue: Queue, version: tuple[int, ...], *, is_delay: bool, is_consumed: bool
) -> tuple[Reason, ...]:
    """The reasons for which messages can die in a queue, by its arguments.

    Nobody rejects in a delay queue, and messages leave it by expiring although it may have no TTL:
    then their own expirations end. Of another queue a message's own expiration is unknown here. A
    TTL of 0 without consumers lets nobody read. Source: RabbitMQ's documentation, “Dead Letter
    Exchanges”; reject-publish refuses new messages and dead-letters none.
    """
    if queue.type == "stream":
        return ()
    is_read = not is_delay and (is_consumed or queue.message_ttl_ms != 0)
    found: list[Reason] = []
    if is_read:
        found.append("rejected")
    if is_delay or queue.message_ttl_ms is not None:
        found.append("expired")
    if _drops_when_full(queue):
        found.append("maxlen")
    if is_read and delivery_limit(queue, version) is not None:
        found.append("delivery_limit")
    return tuple(found)


def _drops_when_full(queue: Queue) -> bool:
    names = ("x-max-length", "x-max-length-bytes")
    is_bounded = any(queue.arguments.number(name) is not None for name in names)
    return is_bounded and queue.arguments.text("x-overflow") != "reject-publish"
