"""Which queues probably hold dead letters: proposed by structure, pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from topology.definitions import TAP_PREFIX
from topology.snapshot import QueueNumbers, Snapshot


@dataclass(frozen=True)
class Candidate:
    """A queue that can be browsed, what it seems to be, and its live numbers."""

    queue: str
    type: str
    numbers: QueueNumbers
    is_likely: bool
    why: str


def candidates(snapshot: Snapshot, in_topologies: Collection[str]) -> list[Candidate]:
    """All queues but Delayboard's own, the likely dead-letter queues and the deepest first.

    Likely: nobody consumes it, no TTL takes its messages away, and it is no topology's own.
    """
    found = []
    for queue in snapshot.definitions.queues:
        numbers = snapshot.numbers.get(queue.name, QueueNumbers())
        if queue.name.startswith(TAP_PREFIX):
            continue
        if queue.name in in_topologies:
            why, likely = "part of a topology", False
        elif queue.type == "stream":
            why, likely = "a stream: nothing dies into it for good", False
        elif queue.message_ttl_ms is not None:
            why, likely = "its messages expire: a delay", False
        elif numbers.consumers:
            why, likely = "has consumers: a work queue", False
        else:
            why, likely = "nobody consumes it", True
        found.append(Candidate(queue.name, queue.type, numbers, likely, why))
    return sorted(found, key=lambda c: (not c.is_likely, -(c.numbers.messages or 0), c.queue))
