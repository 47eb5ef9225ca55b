"""Delay levels as a ladder: a rung for each, the longest wait on top, delivery at the foot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from topology.content.text import count_text
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.delays import format_delay, format_span
from topology.graph import live_values
from topology.graph.live_values import queue_mark, rate_text
from topology.snapshot import QueueNumbers, Snapshot, count_stuck_in

NOWHERE = "nowhere"
MARK_WORDS = {
    **live_values.MARK_WORDS,
    "stuck": "stuck: no route to a queue",
    "taken": "consumed before the due time",
    "no_consumer": "no consumer",
    "waiting": "waiting",
    "growing": "growing",
    "busy": "consumed",
    "missing": "not bound",
    NOWHERE: "no queue bound",
}


@dataclass(frozen=True)
class Levels:
    """The names of a set: of each level's exchange and queue, lowest first, and of delivery's.

    `unit` is what level 0 waits; each level waits twice as long as the one below it.
    """

    names: Sequence[str]
    delivery: str
    unit: timedelta


@dataclass(frozen=True)
class Rung:
    """A level. `queue` and `numbers` are None where RabbitMQ has no queue or reports no numbers.

    `ttl` is the TTL that its queue has, or should have; `proper` the wait of a level this high.
    `lacks` names the missing objects. `mark` is one of `cells.MARK_WORDS`.
    """

    level: int
    name: str
    proper: timedelta
    ttl: timedelta
    queue: Queue | None
    numbers: QueueNumbers | None = None
    lacks: tuple[str, ...] = ()
    mark: str = ""

    @property
    def latest(self) -> timedelta:
        """The longest that a message in it can still be away: this level and all below it."""
        return 2 * self.proper - self.proper // (1 << self.level)

    @property
    def is_off(self) -> bool:
        """Whether its TTL differs from the wait of its level number."""
        return self.ttl != self.proper

    @property
    def is_missing(self) -> bool:
        """There is no queue in which anything could wait."""
        return "queue" in self.lacks

    @property
    def stuck(self) -> int | None:
        return count_stuck_in(self.queue, self.numbers) if self.queue else None

    @property
    def words(self) -> str:
        """The state in words; "" while nothing is known but the plan."""
        notes = [f"missing: {' and '.join(self.lacks)}"] if self.lacks else []
        if self.is_off:
            notes.append(f"TTL {format_span(self.ttl)} instead of {format_span(self.proper)}")
        if self.mark and not self.lacks:
            notes.append(MARK_WORDS.get(self.mark, self.mark))
        return "; ".join(notes)

    @property
    def messages(self) -> str:
        return count_text(self.known.messages)

    @property
    def kept(self) -> str:
        return count_text(self.stuck)

    @property
    def rate(self) -> str:
        return rate_text(self.known.publish_rate)

    @property
    def wait(self) -> str:
        return format_span(self.ttl)

    @property
    def exact(self) -> str:
        return format_delay(self.ttl)

    @property
    def due(self) -> str:
        return format_span(self.latest)

    @property
    def is_idle(self) -> bool:
        is_empty = self.mark == "empty" and not self.is_off and not self.lacks
        return is_empty and not self.known.publish_rate

    @property
    def known(self) -> QueueNumbers:
        return self.numbers or QueueNumbers()


@dataclass(frozen=True)
class Destination:
    """Where delivery hands messages to: the end of a binding of the delivery exchange."""

    kind: str
    name: str
    key: str
    missing: bool = False
    numbers: QueueNumbers | None = None
    mark: str = ""

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def unusual_key(self) -> str:
        """The key that it is bound by, "" for that of a destination of its name."""
        return "" if self.key == f"#.{self.name}" else self.key

    @property
    def words(self) -> str:
        return MARK_WORDS.get(self.mark, "")

    @property
    def messages(self) -> str:
        return count_text(self.numbers.messages if self.numbers else None)


@dataclass(frozen=True)
class Ladder:
    """The rungs from the longest wait down; destinations by name.

    `is_seen`: the broker was seen; else this is a plan and nothing is known of it. `folded` is how
    many levels are left out.
    """

    rungs: tuple[Rung, ...]
    delivery: str
    delivery_missing: bool
    destinations: tuple[Destination, ...]
    is_seen: bool
    folded: int = 0

    @property
    def is_absent(self) -> bool:
        """Nothing of it is in the broker, as before it is applied."""
        return self.delivery_missing and all(rung.is_missing for rung in self.rungs)

    @property
    def keeps(self) -> bool:
        """Whether the levels keep what nobody takes (at-least-once), instead of losing it."""
        arguments = (rung.queue.arguments for rung in self.rungs if rung.queue is not None)
        return any(one.text("x-dead-letter-strategy") == "at-least-once" for one in arguments)


def fold(ladder: Ladder) -> Ladder:
    """The ladder without the levels that hold and receive nothing; the highest and the lowest
    remain.
    """
    if not ladder.is_seen or ladder.is_absent:
        return ladder
    ends = (ladder.rungs[0], ladder.rungs[-1])
    rungs = tuple(rung for rung in ladder.rungs if rung in ends or not rung.is_idle)
    return replace(ladder, rungs=rungs, folded=len(ladder.rungs) - len(rungs))


def build_ladder(levels: Levels, found: Snapshot | Definitions, wanted: Definitions) -> Ladder:
    """The ladder as `found`; what of `wanted` is not there is missing.

    What differs from the wanted is drawn as it is. Delayboard's taps are no destinations.
    """
    whole = found.definitions if isinstance(found, Snapshot) else found
    numbers = found.numbers if isinstance(found, Snapshot) else None
    names = {*levels.names, levels.delivery}
    own = Definitions(
        frozenset(exchange for exchange in whole.exchanges if exchange.name in names),
        frozenset(queue for queue in whole.queues if queue.name in names),
        frozenset(binding for binding in whole.bindings if binding.source in names),
    )
    there = {obj.identity for obj in own}
    missing = [obj for obj in wanted if obj.identity not in there]
    lacks = _describe_missing(missing)
    queues = {queue.name: queue for queue in own.queues}
    for name in levels.names:
        if name in queues and queues[name].message_ttl_ms is None:
            lacks[name].append("TTL")
    rungs = []
    for level, name in enumerate(levels.names):
        rung = _rung(levels, level, queues.get(name), numbers)
        rungs.append(
            replace(rung, lacks=tuple(lacks[name]), mark="missing") if lacks[name] else rung
        )
    both = (one.without_taps() for one in (own, Definitions.of(missing)))
    ends = [end for one in both for end in one.leaving(levels.delivery)]
    return Ladder(
        rungs=tuple(reversed(rungs)),
        delivery=levels.delivery,
        delivery_missing="exchange" in lacks[levels.delivery],
        destinations=_destinations(ends, there, whole, numbers),
        is_seen=numbers is not None,
    )


def _describe_missing(missing: Iterable[BrokerObject]) -> defaultdict[str, list[str]]:
    """Name of a level or of delivery -> words for its missing objects.

    A level without its exchange cannot have a binding, so the binding is not listed too.
    """
    words: defaultdict[str, list[str]] = defaultdict(list)
    for obj in missing:
        if isinstance(obj, Exchange):
            words[obj.name].append("exchange")
        elif isinstance(obj, Queue):
            words[obj.name].append("queue")
        elif not words[obj.source]:
            into = obj.destination_is_queue
            words[obj.source].append("queue binding" if into else "next-level binding")
    return words


def _rung(
    levels: Levels, level: int, queue: Queue | None, numbers: Mapping[str, QueueNumbers] | None
) -> Rung:
    proper = levels.unit * (1 << level)
    ttl = proper if queue is None or queue.message_ttl is None else queue.message_ttl
    rung = Rung(level, levels.names[level], proper, ttl, queue)
    if queue is None or numbers is None:
        return rung
    known = numbers.get(queue.name, QueueNumbers())
    return replace(rung, numbers=known, mark=queue_mark(queue, known, is_level=True))


def _destinations(
    ends: Iterable[Binding],
    there: set[tuple[str, ...]],
    whole: Definitions,
    numbers: Mapping[str, QueueNumbers] | None,
) -> tuple[Destination, ...]:
    names = {binding.destination for binding in ends}
    leading = {binding.source for binding in whole.bindings if binding.source in names}
    named = [exchange for exchange in whole.exchanges if exchange.name in names]
    leading |= {one.name for one in named if "alternate-exchange" in one.arguments}
    drawn = []
    for binding in sorted(ends, key=lambda binding: binding.identity):
        kind = "queue" if binding.destination_is_queue else "exchange"
        end = Destination(kind, binding.destination, binding.routing_key)
        queue = whole.queue(end.name) if kind == "queue" else None
        if binding.identity not in there:
            end = replace(end, missing=True, mark="missing")
        elif numbers is not None and queue is not None:
            known = numbers.get(end.name)
            end = replace(end, numbers=known, mark=queue_mark(queue, known))
        elif numbers is not None and kind == "exchange" and end.name not in leading:
            end = replace(end, mark=NOWHERE)
        drawn.append(end)
    return tuple(drawn)
