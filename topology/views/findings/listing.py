"""Findings: those of every broker counted, and those of one as a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from topology import access
from topology.database.paging import read_slice
from topology.findings.finding import Finding
from topology.findings.report import name_of
from topology.findings.severity import Severity, make_counts
from topology.models import Broker, Role
from topology.operations.finding_rows import count_open, find_mutes, find_pending
from topology.views.findings.results import (
    count_by_severity,
    make_line,
    read_findings,
)
from topology.views.sorting import read_sort

PAGE = 50


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
