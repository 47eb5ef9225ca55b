"""Queues that hold only so many, and what a whole replay would push out of them; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from topology.definitions import Queue, is_tap
from topology.routing.matching.index import Index
from topology.routing.walk import walk
from topology.snapshot import QueueNumbers, Snapshot

_NONE = QueueNumbers()


@dataclass(frozen=True)
class BoundedQueue:
    """A queue with a maximum length; None means no maximum, and for `has` (ready) unknown.

    `refuses`: when it is full, new messages are refused instead of the oldest being dropped.
    """

    queue: Queue
    most: int | None
    most_bytes: int | None
    has: int | None
    is_consumed: bool

    @property
    def refuses(self) -> bool:
        return (self.queue.arguments.text("x-overflow") or "").startswith("reject-publish")

    @property
    def sentence(self) -> str:
        stated = ((self.most, "message"), (self.most_bytes, "byte"))
        bounds = [_count_units(number, unit) for number, unit in stated if number is not None]
        return f"“{self.queue.name}” holds at most {' or '.join(bounds)}"


@dataclass(frozen=True)
class Incoming:
    """What a replay brings into a queue; `size` in bytes, None where it is not known.

    `is_late`: some of it comes as a dead letter of another queue, which no publisher hears of.
    """

    number: int = 0
    size: int | None = 0
    is_late: bool = False

    def add(self, number: int, size: int | None, *, is_late: bool) -> Incoming:
        whole = None if size is None or self.size is None else self.size + size
        return Incoming(self.number + number, whole, self.is_late or is_late)


@dataclass(frozen=True)
class Overflow:
    """What becomes of it, as an ending of a ReplayRoute and a sentence."""

    ending: str
    sentence: str


def find_bounded_queues(snapshot: Snapshot) -> Mapping[str, BoundedQueue]:
    """The queues with a maximum length by name; a stream's is how long it keeps what was read."""
    found = {}
    for queue in snapshot.definitions.queues:
        most = queue.arguments.number("x-max-length")
        most_bytes = queue.arguments.number("x-max-length-bytes")
        if queue.type == "stream" or is_tap(queue.name) or (most is None and most_bytes is None):
            continue
        numbers = snapshot.numbers.get(queue.name, _NONE)
        # Those that a consumer holds do not count.
        has = numbers.messages if numbers.ready is None else numbers.ready
        found[queue.name] = BoundedQueue(queue, most, most_bytes, has, bool(numbers.consumers))
    return found


def find_overflow(
    bound: BoundedQueue, coming: Incoming, index: Index, key: str, source: Collection[str]
) -> Overflow | None:
    """What the queue cannot hold, None when it holds all; `source` is the messages' queue."""
    into = () if bound.refuses else _find_dead_letter_queues(bound.queue, index, key)
    fate = _describe_fate(bound, coming, into)
    excess = None if bound.has is None else _describe_excess(bound, coming, bound.has)
    if excess is None:
        if not (unknown := _describe_unknown(bound, coming)):
            return None
        them = _count_messages(coming.number)
        why = f"{bound.sentence}, and {unknown}: with {them} some may be {fate}."
        return Overflow("uncertain", why)
    if bound.is_consumed:
        return Overflow("full", f"{excess} would be {fate}, unless its consumers are faster.")
    return Overflow(_choose_ending(bound, coming, into, source), f"{excess} would be {fate}.")


def _describe_excess(bound: BoundedQueue, coming: Incoming, has: int) -> str | None:
    """How many it cannot hold, as the beginning of a sentence; None where that is not certain."""
    if bound.most is not None and has + coming.number > bound.most:
        over = has + coming.number - bound.most
        head = f"{bound.sentence} and has {has:,}:"
        if bound.refuses:
            return f"{head} {min(over, coming.number):,} of {_count_messages(coming.number)}"
        old, new = min(has, over), max(0, over - has)
        them = f"{new:,} of {_count_messages(coming.number)}"
        if not old:
            return f"{head} {them}"
        before = f"{old:,} that {'is' if old == 1 else 'are'} in it"
        return f"{head} {before} and {them}" if new else f"{head} {before}"
    if bound.most_bytes is not None and (coming.size or 0) > bound.most_bytes:
        them = _count_messages(coming.number)
        return f"{bound.sentence}, and {them} have {coming.size:,} bytes: some"
    return None


def _describe_unknown(bound: BoundedQueue, coming: Incoming) -> str:
    """What is unknown, so that it may not hold all messages; "" when it holds all."""
    if bound.has is None:
        return "how many it has is not known"
    is_told = bound.most_bytes is None or (bound.has == 0 and coming.size is not None)
    return "" if is_told else "how many bytes it would have is not known"


def _describe_fate(bound: BoundedQueue, coming: Incoming, into: Sequence[str]) -> str:
    if bound.refuses:
        return "refused and lost" if coming.is_late else "refused and stay where they are"
    if into:
        return f"dropped from the front of the queue and dead-lettered into {' and '.join(into)}"
    return "dropped from the front of the queue"


def _choose_ending(
    bound: BoundedQueue, coming: Incoming, into: Sequence[str], source: Collection[str]
) -> str:
    if bound.refuses:
        return "lost" if coming.is_late else "full"
    if not into:
        return "lost"
    return "loops" if set(into) & set(source) else "full"


def _find_dead_letter_queues(queue: Queue, index: Index, key: str) -> tuple[str, ...]:
    """The queues that take what is pushed out of this one; none where that is lost."""
    exchange = queue.dead_letter_exchange
    if exchange is None:
        return ()
    walked = walk(index, exchange, queue.dead_letter_routing_key or key)
    first = {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops}
    return tuple(sorted(first - {queue.name}))


def _count_messages(number: int) -> str:
    return "this one" if number == 1 else f"these {number:,}"


def _count_units(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
