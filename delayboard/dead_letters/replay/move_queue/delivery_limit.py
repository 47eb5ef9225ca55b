"""Which live queues cannot go straight through: where what is put back may be destroyed; pure."""

from __future__ import annotations

from math import ceil

from delayboard.dead_letters.parking.in_flight_limit import COUNTER, IN_FLIGHT_BYTES, MARGIN
from delayboard.dead_letters.queues.peek_limit import costs_of
from topology.broker.amqp.deliveries import Arrival
from topology.definitions import Queue
from topology.routing.consumer import delivery_limit

# What comes beforehand is sent within about so long (seconds), where a rate is kept.
AHEAD_SECONDS = 60.0
PARK = "Park the queue and replay the parked messages instead."


class Costly(Exception):
    """Consuming would destroy messages; the message says what to do instead."""


def explain_costly(queue: Queue, version: tuple[int, ...]) -> str:
    """Why what lies in the queue does not go straight through; "" when it may.

    From 4.3 on only a crash costs a delivery, before that each message that is put back.
    """
    limit = delivery_limit(queue, version)
    if limit is None:
        return ""
    if costs_of(queue, version) is not None:
        return (
            f"“{queue.name}” has the delivery limit {limit}: each pause and each try would cost "
            f"the messages at its head one delivery, and after the last one they are gone. {PARK}"
        )
    if limit <= MARGIN:
        return (
            f"“{queue.name}” has the delivery limit {limit}: each crash would cost the messages "
            f"at its head one delivery, and after the last one they are gone. {PARK}"
        )
    return ""


def explain_near_limit(arrival: Arrival, limit: int | None) -> str:
    """Why this message is not held by a run that may crash; "" when it may be."""
    if limit is None or COUNTER.encode() not in arrival.raw:
        return ""
    count = arrival.message.headers.get(COUNTER)
    if not isinstance(count, int) or count < limit - MARGIN:
        return ""
    return (
        f"A message has failed {count} deliveries, and its queue's delivery limit is {limit}: a "
        f"few crashes more and it is gone. {PARK}"
    )


def choose_prefetch(most: int, rate: float | None, average: int) -> int:
    """How many may come beforehand; `average` is the size of a body (bytes)."""
    at_rate = most if rate is None else ceil(rate * AHEAD_SECONDS)
    return max(1, min(most, at_rate, IN_FLIGHT_BYTES // max(1, average)))
