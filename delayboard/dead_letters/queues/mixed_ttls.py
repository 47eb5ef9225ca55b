"""Pure: messages of a peek that wait behind one with a longer TTL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf

from topology.definitions import Queue
from topology.delays import format_delay
from topology.findings.rules.live import BLOCKED
from topology.message import Message
from topology.routing.walk import read_expiration
from topology.snapshot import Report

# Milliseconds after a peek in which it says something of what is in the queue.
LONGEST_MS = 86_400_000


def find_blocked(
    queue: Queue, messages: Sequence[Message], removed: int
) -> tuple[Report | None, timedelta]:
    """How many messages wait behind one with a longer TTL, and for how long at most.

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
    end = "One message has no TTL and never expires."
    if longest < inf:
        end = f"The longest TTL is {format_delay(timedelta(milliseconds=longest))}."
    sentence = (
        f"{shorter} of the first {len(messages) + removed} messages in “{queue.name}” wait behind "
        f"a message with a longer TTL. {end}"
    )
    if removed:
        were = "1 of them had" if removed == 1 else f"{removed} of them had"
        sentence += f" {were} expired, and RabbitMQ removed them during the peek."
    return Report(BLOCKED.id, queue.name, shorter, sentence), lasts


def _find_ttl_ms(queue: Queue, message: Message) -> float:
    """The time that it has in the queue; infinity for a message that never expires."""
    ttls_ms = [inf if queue.message_ttl_ms is None else queue.message_ttl_ms]
    # RabbitMQ refuses a publish with another text.
    with suppress(ValueError):
        ttls_ms.append(read_expiration(message.properties.expiration or ""))
    return min(ttls_ms)
