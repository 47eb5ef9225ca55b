"""One line for each topology: how it does, and what is in it. Problem comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias

from analytics.charts.svg import points
from analytics.minutes import SPAN_DRAWN, count_by_span
from delayboard.dead_letters.retrying import count_queued, waits_in_work_queue
from delayboard.now.lateness import Lateness
from delayboard.now.problems import Problem
from delayboard.now.throughput import FlowLine
from topology.content.text import count_text
from topology.models import Topology
from topology.patterns.pattern import ParamsError
from topology.patterns.table import KINDS
from topology.snapshots import Latest

# Places in the drawing of a day: each ten minutes, and now.
DRAWN = 145
DayOf = Literal["waiting", "entered", "left"]
# Place of the drawing -> how many messages entered and left.
Spans: TypeAlias = Mapping[int, tuple[int, int]]
# Queues by broker and name.
Queues: TypeAlias = set[tuple[int, str]]


@dataclass(frozen=True)
class TopologyLine:
    """`dead` are parked messages that failed in its queues, None where that is not known.

    `day` has what is drawn, each ten minutes up to now: how many waited, or how many entered or
    left where the other side is not observed; () where nothing is known.
    """

    flow: FlowLine
    lateness: Lateness
    waiting: int | None
    dead: int | None
    trouble: Problem | None = None
    day: tuple[int, ...] = ()
    day_of: DayOf = "waiting"

    @property
    def topology(self) -> Topology:
        return self.flow.topology

    @property
    def key(self) -> str:
        return self.flow.key

    @property
    def pattern(self) -> str:
        return KINDS[self.topology.kind].EXPLANATION.title

    @property
    def state(self) -> str:
        if self.trouble:
            return self.trouble.state
        return "Late" if self.flow.is_late else self.flow.status

    @property
    def mark(self) -> str:
        if self.trouble:
            return "failed" if self.trouble.severity == "error" else "late"
        return "late" if self.flow.is_late else self.flow.mark

    @property
    def day_line(self) -> str:
        """The corners of a line whose right edge is now and whose width is a day."""
        if not self.day:
            return ""
        empty = DRAWN - len(self.day)
        line = points((0,) * empty + self.day, most=max(self.day), steps=DRAWN)
        return " ".join(line.split(" ")[empty:])

    @property
    def day_words(self) -> str:
        if not self.day:
            return "No data for the last 24 h."
        hours = (len(self.day) - 1) // 6
        span = "24 h" if len(self.day) == DRAWN else f"{hours} h" if hours else "hour"
        least, most = count_text(min(self.day)), count_text(max(self.day))
        if self.day_of == "waiting":
            return f"Waiting messages in the last {span}: {least} to {most}."
        side = "in" if self.day_of == "entered" else "out"
        return f"Messages {side} in ten minutes, in the last {span}: {least} to {most}."

    @property
    def shown(self) -> tuple[object, ...]:
        """What is in the line."""
        row, late = self.topology, self.lateness
        return (
            (row.slug, row.name, self.mark, self.state, self.waiting),
            (self.dead, late.text, late.note, self.day, *self.flow.shown),
        )


def count_waiting(
    flows: Iterable[FlowLine], listed: Mapping[int, int], known: Mapping[int, Latest]
) -> dict[int, int | None]:
    """Topology -> how many wait: as listed where entries are recorded, else what its queues hold.

    None while that is not known either.
    """
    found: dict[int, int | None] = {}
    for flow in flows:
        topology, latest = flow.topology, known[flow.topology.broker_id]
        is_seen = not flow.unknown and "entry" not in flow.not_observed
        if is_seen and not waits_in_work_queue(topology):
            found[topology.pk] = listed.get(topology.pk, 0)
        else:
            snapshot = None if latest.error else latest.snapshot
            found[topology.pk] = count_queued(topology, snapshot) if snapshot else None
    return found


def make_lines(
    flows: Iterable[FlowLine],
    lateness: Mapping[int, Lateness],
    waiting: Mapping[int, int | None],
    queues: Mapping[int, Queues],
    parked: Mapping[tuple[int, str], int],
    troubles: Sequence[Problem],
) -> tuple[TopologyLine, ...]:
    """The lines in the order of their troubles, those of one severity by name."""
    shared = _find_shared(queues)
    first: dict[int, Problem] = {}
    for trouble in troubles:
        if trouble.topology is not None:
            first.setdefault(trouble.topology, trouble)
    lines = []
    for flow in flows:
        pk = flow.topology.pk
        dead = _count_dead(flow.topology, queues[pk], shared, parked)
        lines.append(TopologyLine(flow, lateness[pk], waiting[pk], dead, first.get(pk)))
    ranks = {"failed": 0, "late": 1}
    return tuple(sorted(lines, key=lambda line: (ranks.get(line.mark, 2), line.topology.name)))


def draw_days(lines: Iterable[TopologyLine], now: datetime) -> list[TopologyLine]:
    """Each with its last day: how many waited, else how many entered or left."""
    last_at = now.astimezone(UTC).replace(second=0, microsecond=0)
    last_at -= timedelta(minutes=last_at.minute % 10)
    drawn = list(lines)
    older = _read_spans(tuple(one.topology.pk for one in drawn), last_at)
    return [_draw_day(one, older[one.topology.pk], now.minute % 10 + 1) for one in drawn]


@lru_cache(64)
def _read_spans(
    topologies: tuple[int, ...], last_at: datetime
) -> dict[int, dict[int, tuple[int, int]]]:
    """Read once in ten minutes: what entered and left so long ago no longer changes."""
    return count_by_span(topologies, last_at - (DRAWN - 2) * SPAN_DRAWN, last_at)


def _draw_day(line: TopologyLine, older: Spans, minutes: int) -> TopologyLine:
    """Nothing is drawn while what happened is not known.

    The last hour is that of the line: `minutes` since the last whole ten minutes, and five spans.
    """
    seen = line.flow.flow.minutes
    if line.flow.unknown or not seen or len(line.flow.not_observed) == 2:
        return line
    ends = [len(seen), *(len(seen) - minutes - 10 * n for n in range(6))]
    hour = [seen[begin:end] for end, begin in pairwise(ends)]
    recent = [(sum(m.entered for m in span), sum(m.left for m in span)) for span in hour]
    first = min(older, default=DRAWN - 2)
    spans = [older.get(place, (0, 0)) for place in range(first, DRAWN - 1)]
    spans = [*spans[: -len(recent)], *reversed(recent[: len(spans)])]
    if line.flow.not_observed:
        side: DayOf = "left" if "entry" in line.flow.not_observed else "entered"
        return replace(line, day=tuple(span[side == "left"] for span in spans), day_of=side)
    depths = [line.waiting or 0]
    for entered, left in reversed(spans):
        depths.append(depths[-1] - entered + left)
    # What waits may have come otherwise, such as by an import: then the counts do not add up.
    is_known = line.waiting is not None and min(depths) >= 0
    return replace(line, day=tuple(reversed(depths))) if is_known else line


def _count_dead(
    topology: Topology, queues: Queues, shared: Queues, parked: Mapping[tuple[int, str], int]
) -> int | None:
    if any(parked.get(one) for one in queues & shared):
        return None
    number = sum(parked.get(one, 0) for one in queues)
    # RabbitMQ records no death where the consumer publishes its failures: none found is no zero.
    is_known = number > 0 or topology.pattern.ATTEMPTS_COUNTED_BY != "consumer"
    return number if queues and is_known else None


def _find_shared(queues: Mapping[int, Queues]) -> Queues:
    """The queues of several topologies: what failed there is of one of them, unknown which."""
    uses = Counter(one for found in queues.values() for one in found)
    return {one for one, number in uses.items() if number > 1}


def read_queues(flows: Iterable[FlowLine]) -> dict[int, Queues]:
    """Topology -> its delay, work and parking queues; none where it delivers to others' queues."""
    found: dict[int, Queues] = {}
    for topology in (flow.topology for flow in flows):
        names = set[str]()
        with suppress(ParamsError):
            if targets := topology.pattern.targets(topology.parsed):
                own = topology.pattern.definitions(topology.parsed).queues
                names = {*targets, *(one.name for one in own)}
        found[topology.pk] = {(topology.broker_id, name) for name in names}
    return found


def count_other_parked(queues: Mapping[int, Queues], parked: Mapping[tuple[int, str], int]) -> int:
    """The parked messages that are in no line: failed in other queues, in one that topologies
    share, or in an unknown one.
    """
    shared = _find_shared(queues)
    known = [found for found in queues.values() if not any(parked.get(q) for q in found & shared)]
    counted = set[tuple[int, str]]().union(*known)
    return sum(number for failed_in, number in parked.items() if failed_in not in counted)
