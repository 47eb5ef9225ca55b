"""The findings of each broker, computed once for each snapshot, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.utils import timezone

from topology import snapshots
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.findings.report import name_of
from topology.findings.severity import Count, make_count, make_counts
from topology.models import Broker, State, Topology
from topology.operations.finding_rows import find_mutes
from topology.operations.queue_reports import with_reports
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked

_results: SnapshotResults[tuple[Finding, ...]] = SnapshotResults()
_finder = Finder()


@dataclass(frozen=True)
class Line:
    """A finding in a list, with the first of its objects in words."""

    finding: Finding
    severity: Count
    first: str

    @property
    def others(self) -> int:
        return len(self.finding.objects) - 1


def get_findings(broker: Broker, snapshot: Snapshot) -> Worked[tuple[Finding, ...]] | None:
    """Of a vhost with very much in it, beside this request; None while that is not done."""
    reported = with_reports(broker, snapshot)
    return _results.get(broker, snapshot, lambda: _finder.find(broker.pk, reported))


def read_findings(
    broker: Broker,
) -> tuple[snapshots.Latest, Worked[tuple[Finding, ...]] | None]:
    """What is known of the broker now, and its findings as far as they are computed."""
    known = snapshots.fresh(broker)
    return known, get_findings(broker, known.snapshot) if known.snapshot else None


def findings_line(broker: Broker, snapshot: Snapshot) -> list[Count] | None:
    """How many there are of each severity, without muted ones; None while they are computed."""
    worked = get_findings(broker, snapshot)
    if worked is None:
        return None
    mutes = find_mutes(broker, timezone.now())
    return count_by_severity(one for one in worked.value if one.key not in mutes)


def lines_of(topology: Topology, snapshot: Snapshot) -> list[Line] | None:
    """The findings about objects of a topology, without muted ones; None while they are computed.

    Raises ParamsError for a row that no longer reads.
    """
    worked = get_findings(topology.broker, snapshot)
    if worked is None:
        return None
    mutes = find_mutes(topology.broker, timezone.now())
    counted = [one for one in worked.value if one.key not in mutes]
    return [make_line(one) for one in _about(topology, counted)]


def count_by_topology(topologies: Iterable[Topology]) -> dict[int, list[Count]]:
    """By the row's id, from what was last known of each broker; without those that are unknown."""
    by_broker: dict[int, list[Finding] | None] = {}
    counts = {}
    for topology in topologies:
        broker = topology.broker
        if broker.pk not in by_broker:
            known = snapshots.latest(broker.pk)
            worked = get_findings(broker, known.snapshot) if known and known.snapshot else None
            mutes = find_mutes(broker, timezone.now()) if worked and worked.value else {}
            by_broker[broker.pk] = (
                [one for one in worked.value if one.key not in mutes] if worked else None
            )
        found = by_broker[broker.pk]
        if found is not None and topology.state == State.APPLIED:
            with suppress(ParamsError):
                counts[topology.pk] = count_by_severity(_about(topology, found))
    return counts


def _about(topology: Topology, found: Sequence[Finding]) -> list[Finding]:
    """Those about objects of the topology. Raises ParamsError."""
    if not found:
        return []
    own = {obj.identity for obj in topology.pattern.definitions(topology.parsed)}
    return [one for one in found if own.intersection(one.objects)]


def make_line(one: Finding) -> Line:
    return Line(one, make_count(one.severity, 1), name_of(one.objects[0]))


def count_by_severity(found: Iterable[Finding]) -> list[Count]:
    return make_counts(Counter(one.severity for one in found))
