"""How late messages left their delays in the last hour, against the target of their topology."""

from __future__ import annotations

from collections import Counter as Sum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analytics import buckets
from analytics.models import Slo
from analytics.results.section import percent
from analytics.results.slo import Attainment, attainment
from delayboard.now.counters import Counter
from delayboard.now.problems import BURNING, Link, Problem, ProblemKind
from delayboard.now.throughput import FlowLine
from topology.content.text import count_text
from topology.delays import format_ms
from topology.graph.live_values import UNKNOWN

# In an hour this uses up 2 % of the error budget of 28 days, as in Google's SRE workbook.
FAST_BURN = 13.4
# Fewer late messages say little.
LATE_AT_LEAST = 5


@dataclass(frozen=True)
class Lateness:
    """The measured messages of the last hour by bucket of lateness, and their target."""

    counts: buckets.Counts = field(default_factory=dict)
    target: Slo | None = None

    @property
    def text(self) -> str:
        return f"{_at(self.counts, 0.5)} / {_at(self.counts, 0.99)}" if self.counts else UNKNOWN

    @property
    def hour(self) -> Attainment | None:
        if self.target is None or not self.counts:
            return None
        return attainment(self.counts, self.target.percent, self.target.within_ms)

    @property
    def is_missed(self) -> bool:
        hour = self.hour
        return hour is not None and hour.burn_rate is not None and hour.burn_rate > 1

    @property
    def note(self) -> str:
        """The share within the target, where there is one."""
        if self.target is None:
            return ""
        share = self.hour.share if self.hour else None
        return f"{UNKNOWN if share is None else percent(share)}, target {self.target}"


def read_lateness(flows: Sequence[FlowLine]) -> dict[int, Lateness]:
    """By the primary key of the topology; empty where deliveries are not known."""
    rows = Slo.objects.filter(topology__in=[one.topology.pk for one in flows])
    targets = {row.topology_id: row for row in rows}
    found = {}
    for one in flows:
        counts = one.flow.lateness if one.numbers["left"] is not None else {}
        found[one.topology.pk] = Lateness(counts, targets.get(one.topology.pk))
    return found


def lateness_counter(found: Mapping[int, Lateness]) -> Counter:
    """The p99 of all measured messages of the last hour, beside the number of missed targets.

    Its link leads to the table below, which has the last hour of each topology.
    """
    total = Sum[int]()
    for one in found.values():
        total.update(one.counts)
    targets = sum(one.hour is not None for one in found.values())
    missed = sum(one.is_missed for one in found.values())
    measured = count_text(sum(total.values()))
    note = f"p50 {_at(total, 0.5)} of {measured} in\u00a01\u00a0h" if total else "nothing measured"
    if targets:
        note += f", {missed} of {targets} SLO{'s' * (targets > 1)} missed"
    link = Link("", "now", fragment="topologies")
    shown = _at(total, 0.99) if total else UNKNOWN
    return Counter("lateness", "lateness p99", None, link, note, missed > 0, shown)


def find_burning(flows: Sequence[FlowLine], found: Mapping[int, Lateness]) -> Iterator[Problem]:
    """The topologies that use up the error budget of 28 days in two days or less."""
    for one in flows:
        late = found[one.topology.pk]
        hour = late.hour
        if hour is None or hour.burn_rate is None or hour.measured - hour.within < LATE_AT_LEAST:
            continue
        if hour.burn_rate >= FAST_BURN:
            topology = one.topology
            query = {"topology": topology.slug, "range": "28"}
            link = Link("View report", "analytics:reports", query=query, fragment="slo")
            sentence = (
                f"{topology.name}: {percent(hour.within / hour.measured)} of the deliveries of "
                f"the last hour met the target {late.target}. The error budget is "
                f"used {hour.burn_rate:.0f} times as fast as the target allows."
            )
            key, kind, of = BURNING.format(topology.pk), ProblemKind.SLO, topology.broker_id
            yield Problem("warning", kind, sentence, link, key, topology.pk, "Late", of)


def _at(counts: buckets.Counts, share: float) -> str:
    late = buckets.percentile(counts, share)
    return UNKNOWN if late is None else format_ms(late)
