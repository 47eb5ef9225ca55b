"""How late messages left their delays in the last hour, against the target of their topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from analytics import buckets
from analytics.models import Slo
from analytics.results.section import percent
from analytics.results.slo import Attainment, attainment
from delayboard.now.throughput import FlowLine
from topology.delays import format_ms
from topology.graph.live_values import UNKNOWN


@dataclass(frozen=True)
class Lateness:
    """The measured messages of the last hour by bucket of lateness, and their target."""

    counts: buckets.Counts = field(default_factory=dict)
    target: Slo | None = None

    @property
    def text(self) -> str:
        return (
            f"{format_late(self.counts, 0.5)} / {format_late(self.counts, 0.99)}"
            if self.counts
            else UNKNOWN
        )

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
    """Primary key of a topology -> its lateness; none where deliveries are not known."""
    rows = Slo.objects.filter(topology__in=[one.topology.pk for one in flows])
    targets = {row.topology_id: row for row in rows}
    found = {}
    for one in flows:
        counts = one.flow.lateness if one.numbers["left"] is not None else {}
        found[one.topology.pk] = Lateness(counts, targets.get(one.topology.pk))
    return found


def format_late(counts: buckets.Counts, share: float) -> str:
    late = buckets.percentile(counts, share)
    if late is None:
        return UNKNOWN
    # Early and on time are 0, and nothing is measured more exactly.
    return "<1ms" if late < 1 else format_ms(late)
