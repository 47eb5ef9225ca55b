"""Findings: computed once for each snapshot, counted for every broker, listed for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from topology import access, snapshots
from topology.database.paging import read_slice
from topology.findings.evidence import Count, Severity, make_count, make_counts
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.findings.report import name_of
from topology.models import Broker, Role, State, Topology
from topology.operations.finding_rows import count_open, find_mutes, find_pending, with_reports
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.sorting import read_sort

PAGE = 50

_results: SnapshotResults[tuple[Finding, ...]] = SnapshotResults()
_finder = Finder()


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """The only broker's findings, or for each what the worker last counted, as the badge does."""
    visible, chosen = access.choose_brokers(request)
    if chosen:
        return redirect("topology:findings", chosen.slug)
    if len(visible) == 1:
        return findings(request, broker_slug=visible[0].slug)
    found = count_open(visible, timezone.now())
    rows = [
        (broker, make_counts(found.get(broker.pk, {})) if broker.findings_checked_at else None)
        for broker in visible
    ]
    return render(request, "topology/findings_overview.html", {"rows": rows})


@require_safe
@access.with_broker(Role.VIEWER)
def findings(request: HttpRequest, broker: Broker) -> HttpResponse:
    known, worked = read_findings(broker)
    search, severity = request.GET.get("q", "").strip(), request.GET.get("severity", "")
    sort = read_sort(request, ("severity", *SORTS), "-severity")
    context: dict[str, Any] = {
        "broker": broker,
        "sort": sort,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
        "search": search,
        "severity": severity,
        "severities": [(one.key, one.label) for one in sorted(Severity, reverse=True)],
    }
    if worked is not None:
        mutes = find_mutes(broker, timezone.now())
        counted = [one for one in worked.value if one.key not in mutes]
        chosen = [one for one in counted if _fits(one, search.casefold(), severity)]
        if by := SORTS.get(sort.removeprefix("-")):
            chosen.sort(key=by)
        if sort.startswith("-") == bool(by):
            chosen.reverse()
        page = read_slice(chosen, request.GET.get("after", ""), PAGE)
        context |= {
            "counts": count_by_severity(counted),
            "pending": [
                row
                for row in find_pending(broker, worked.snapshot, worked.value)
                if row.key not in mutes
            ],
            "muted": [(make_line(one), mutes[one.key]) for one in worked.value if one.key in mutes],
            "page": page,
            "lines": [make_line(one) for one in page.rows],
            "total": len(chosen),
        }
    return render(request, "topology/findings.html", context)


# Beside the severity, in whose order they are found.
SORTS: dict[str, Callable[[Finding], str]] = {
    "finding": lambda one: one.title.casefold(),
    "object": lambda one: name_of(one.objects[0]).casefold(),
}


def _fits(one: Finding, text: str, severity: str) -> bool:
    if severity not in ("", one.severity.key):
        return False
    names = [one.title, one.rule.id, *(name_of(obj) for obj in one.objects)]
    return not text or any(text in name.casefold() for name in names)


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
