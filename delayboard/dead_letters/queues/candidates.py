"""Which queues probably hold dead letters: proposed by structure, pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from delayboard.dead_letters.queues.feeds import Feed, Feeds, feeds
from topology.content.text import count_text
from topology.definitions import Queue, has_dead_letter_name, is_tap
from topology.snapshot import QueueNumbers, Snapshot

NOT_FED = "no queue dead-letters into this queue"


@dataclass(frozen=True)
class Candidate:
    """A queue that can be browsed, what it seems to be, how it is fed, and its live numbers."""

    queue: str
    type: str
    numbers: QueueNumbers
    is_likely: bool
    why: str
    feeds: Sequence[Feed] = ()
    has_telling_name: bool = False

    @property
    def is_abandoned(self) -> bool:
        """Whether consumers probably publish the messages to it that they give up."""
        return self.has_telling_name and self.why == NOT_FED


def candidates(
    snapshot: Snapshot,
    in_topologies: Collection[str],
    fed: Feeds | None = None,
) -> list[Candidate]:
    """All queues except Delayboard's own: likely dead-letter queues first, then the deepest.

    `in_topologies` are the work queues and destinations of topologies. Likely: failed messages are
    dead-lettered into it, it has no consumers and no TTL, and it is none of these. A queue that
    only receives expired messages is the end of a delay. `fed` is the result of `feeds` for this
    snapshot, if the caller has it.
    """
    fed = feeds(snapshot) if fed is None else fed
    found = []
    for queue in snapshot.definitions.queues:
        if is_tap(queue.name):
            continue
        numbers = snapshot.numbers.get(queue.name, QueueNumbers())
        into = fed.get(queue.name, ())
        obstacle = find_obstacle(queue, numbers, into, in_topology=queue.name in in_topologies)
        why = obstacle or _explain_likely(into)
        named = has_dead_letter_name(queue.name)
        found.append(Candidate(queue.name, queue.type, numbers, not obstacle, why, into, named))
    return sorted(found, key=_place)


def _place(one: Candidate) -> tuple[bool, bool, int, str]:
    return (not one.is_likely, not one.has_telling_name, -(one.numbers.messages or 0), one.queue)


def find_obstacle(
    queue: Queue, numbers: QueueNumbers, into: Sequence[Feed], *, in_topology: bool
) -> str:
    """Why it is probably not a dead-letter queue; "" without such a reason.

    Checked before any advice to confirm, watch or park a queue.
    """
    if queue.type == "stream":
        return "stream: consumers remove no messages"
    if in_topology:
        return "work queue: destination of a topology"
    if queue.message_ttl_ms is not None:
        return "delay queue: messages expire"
    if numbers.consumers:
        return "work queue: has consumers"
    if not into:
        return NOT_FED
    if not any(feed.is_failure for feed in into):
        return "end of a delay: receives only expired messages"
    return ""


def _explain_likely(into: Sequence[Feed]) -> str:
    names = sorted({name for feed in into if feed.is_failure for name in feed.queues})
    who = f"“{names[0]}”" if len(names) == 1 else f"{count_text(len(names))} queues"
    return f"receives failed messages from {who}, has no consumers"
