"""Messages that at-least-once dead-lettering keeps, since nothing takes them."""

from __future__ import annotations

from topology.definitions import Queue
from topology.snapshot import QueueNumbers

# How long a message that has expired may still be on its way to the next queue.
TRANSIT_SECONDS = 0.1


def count_stuck_in(queue: Queue, numbers: QueueNumbers | None) -> int | None:
    """Messages past their time that the queue keeps, because nobody behind it takes them.

    Only at-least-once dead-lettering keeps them, and counts them as neither ready nor
    unacked. None where that cannot be, or where a number is not known.
    """
    if queue.arguments.text("x-dead-letter-strategy") != "at-least-once" or numbers is None:
        return None
    if numbers.messages is None or numbers.ready is None or numbers.unacked is None:
        return None
    return max(0, numbers.messages - numbers.ready - numbers.unacked)


def has_stuck(queue: Queue, numbers: QueueNumbers | None) -> bool:
    """More are held than can be on their way at this moment.

    What is on its way counts as held too. It is what expires in TRANSIT_SECONDS: of what is
    published here so much, and, as the broker does not count what other queues send here, of
    what waits here as much as a steady flow would have left (measured: 2 to 9 at 240 messages
    per second; but all of a burst that expires at one moment looks held for one poll).
    """
    count = count_stuck_in(queue, numbers)
    if not count or numbers is None:
        return False
    ttl_ms = queue.message_ttl_ms
    flow = 1000 * (numbers.ready or 0) / ttl_ms if ttl_ms else 0.0
    return count > TRANSIT_SECONDS * max(flow, numbers.publish_rate or 0.0)
