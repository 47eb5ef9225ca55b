"""PURE: messages of a peek that wait behind one with a longer TTL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf

from topology.definitions import Queue
from topology.delays import format_delay
from topology.findings.rules.live_delays import BLOCKED
from topology.message import Message
from topology.routing.walk import read_expiration
from topology.snapshot import Report

# A peek says nothing of what is in the queue a day later.
LONGEST_MS = 86_400_000


def find_blocked(
    queue: Queue, messages: Sequence[Message], removed: int
) -> tuple[Report | None, timedelta]:
    """How many have a shorter TTL than one before them, and how long that may last.

    `removed` had, and were late: RabbitMQ removed them when the peek took the one before. None
    where there are none, and of a queue with priorities, whose order is another one.
    """
    longest, shorter = 0.0, removed
    if queue.arguments.number("x-max-priority") is not None:
        return None, timedelta(0)
    for ttl_ms in (_find_ttl_ms(queue, message) for message in messages):
        shorter += ttl_ms < longest
        longest = max(longest, ttl_ms)
    lasts = timedelta(milliseconds=min(longest, LONGEST_MS))
    if not shorter:
        return None, lasts
    ttl = "no TTL" if longest == inf else f"the TTL {format_delay(timedelta(milliseconds=longest))}"
    sentence = (
        f"{shorter} of the first {len(messages) + removed} messages in “{queue.name}” have a "
        f"shorter TTL than a message before, which has {ttl}."
    )
    if removed:
        were = "1 of them was late" if removed == 1 else f"{removed} of them were late"
        sentence += f" {were} and left during the peek."
    return Report(BLOCKED.id, queue.name, shorter, sentence), lasts


def _find_ttl_ms(queue: Queue, message: Message) -> float:
    """The time that it has in the queue; infinity for a message that never expires."""
    ttls_ms = [inf if queue.message_ttl_ms is None else queue.message_ttl_ms]
    # RabbitMQ refuses a publish with another text.
    with suppress(ValueError):
        ttls_ms.append(read_expiration(message.properties.expiration or ""))
    return min(ttls_ms)
