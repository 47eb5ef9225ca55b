"""Which queues probably hold dead letters, with their live numbers; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from topology.definitions import has_dead_letter_name, is_tap
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.ends import NOT_FED, Ends, find_ends
from topology.structure.feeds import Feed


@dataclass(frozen=True)
class Candidate:
    """A queue that can be browsed, what it seems to be, how it is fed, and its live numbers.

    `why` is a sentence without its end. RabbitMQ deletes its messages after `deletes_after`, if
    that is not None.
    """

    queue: str
    type: str
    numbers: QueueNumbers
    obstacle: str
    hint: str
    why: str
    feeds: Sequence[Feed] = ()
    has_telling_name: bool = False
    deletes_after: timedelta | None = None

    @property
    def is_likely(self) -> bool:
        """Whether the broker's objects show that failed messages end in it."""
        return not self.obstacle

    @property
    def is_possible(self) -> bool:
        """Whether they do not, and a hint says so."""
        return bool(self.hint)

    @property
    def is_unfed(self) -> bool:
        """Whether it may get failed messages only from those who publish to it."""
        return self.obstacle == NOT_FED


def candidates(
    snapshot: Snapshot, in_topologies: Collection[str], ends: Ends | None = None
) -> list[Candidate]:
    """All queues except Delayboard's own: likely dead-letter queues first, then the deepest.

    `in_topologies` are the work queues and destinations of topologies. `ends` is the result of
    `find_ends` for this snapshot, if the caller has it.
    """
    ends = ends or find_ends(snapshot)
    found = []
    for queue in snapshot.definitions.queues:
        if is_tap(queue.name):
            continue
        obstacle = ends.find_obstacle(queue, is_destination=queue.name in in_topologies)
        hint = ends.find_hint(queue, obstacle)
        one = Candidate(
            queue.name,
            queue.type,
            snapshot.numbers.get(queue.name, QueueNumbers()),
            obstacle,
            hint,
            hint or obstacle or ends.explain(queue),
            ends.feeds.get(queue.name, ()),
            has_dead_letter_name(queue.name),
            queue.deletes_after,
        )
        found.append(one)
    return sorted(found, key=_place)


def _place(one: Candidate) -> tuple[bool, bool, bool, int, str]:
    depth = one.numbers.messages or 0
    return (not one.is_likely, not one.is_possible, not one.has_telling_name, -depth, one.queue)
