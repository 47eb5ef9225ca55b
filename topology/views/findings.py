"""Findings: those of every broker counted, those of one as a list, and one with its chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access, latest
from topology.database.paging import row_number
from topology.findings.chain import chain_of
from topology.findings.commands import has_blanks, set_vhost
from topology.findings.find import find, is_alike
from topology.findings.finding import Finding, Severity
from topology.findings.report import name_of
from topology.models import Broker, Role, State, Topology
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.diagram import way_picture

PAGE = 50
# On the page of a finding.
MOST_OBJECTS = 200
MOST_COMMANDS = 20
LIST_AGE = timedelta(seconds=10)
# Shapes and colours of the site's states.
MARKS = {
    Severity.LOSS: "error",
    Severity.STUCK: "error",
    Severity.TIMING: "warn",
    Severity.COST: "warn",
    Severity.STYLE: "note",
}

_results: SnapshotResults[tuple[Finding, ...]] = SnapshotResults()
# A broker is polled every few seconds, and its definitions seldom change.
_last: dict[int, Worked[tuple[Finding, ...]]] = {}


@dataclass(frozen=True)
class Count:
    """So many findings of a severity; `key` is its name in an address."""

    key: str
    label: str
    mark: str
    number: int


@dataclass(frozen=True)
class Line:
    """A finding in a list, with the first of its objects in words."""

    finding: Finding
    severity: Count
    first: str

    @property
    def others(self) -> int:
        return len(self.finding.objects) - 1


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """The only broker's findings, or the counts of each."""
    visible = list(access.visible_brokers(request.user))
    if len(visible) == 1:
        return findings(request, broker_slug=visible[0].slug)
    known = latest.fresh_all(visible, LIST_AGE)
    rows = [
        {
            "broker": broker,
            "latest": one,
            "counts": findings_line(broker, one.snapshot) if one.snapshot else None,
        }
        for broker, one in zip(visible, known, strict=True)
    ]
    return render(request, "topology/findings_overview.html", {"rows": rows})


@require_safe
@access.with_broker(Role.VIEWER)
def findings(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = latest.fresh(broker)
    worked = worked_out(broker, known.snapshot) if known.snapshot else None
    search, severity = request.GET.get("q", "").strip(), request.GET.get("severity", "")
    first = row_number(request.GET.get("from", "")) or 0
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
        "search": search,
        "severity": severity,
        "severities": _severities(),
    }
    if worked is not None:
        chosen = [one for one in worked.value if _fits(one, search.casefold(), severity)]
        context |= {
            "counts": _counts(worked.value),
            "lines": [_line(one) for one in chosen[first : first + PAGE]],
            "total": len(chosen),
            "from_row": first + 1,
            "to_row": min(first + PAGE, len(chosen)),
            "previous_row": max(0, first - PAGE) if first else None,
            "next_row": first + PAGE if first + PAGE < len(chosen) else None,
        }
    return render(request, "topology/findings.html", context)


@require_safe
@access.with_broker(Role.VIEWER)
def finding(request: HttpRequest, broker: Broker, key: str) -> HttpResponse:
    known = latest.fresh(broker)
    worked = worked_out(broker, known.snapshot) if known.snapshot else None
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
    }
    one = next((each for each in worked.value if each.key == key), None) if worked else None
    if worked is not None and one is not None:
        context |= _shown(broker, one, worked.snapshot)
    return render(request, "topology/finding.html", context)


def worked_out(broker: Broker, snapshot: Snapshot) -> Worked[tuple[Finding, ...]] | None:
    """Of a vhost with very much in it, beside this request; None while that is not done."""

    def look() -> tuple[Finding, ...]:
        known = _last.get(broker.pk)
        if known is None or not is_alike(known.snapshot, snapshot):
            known = Worked(snapshot, find(snapshot))
        _last[broker.pk] = Worked(snapshot, known.value)
        return known.value

    return _results.get(broker, snapshot, look)


def findings_line(broker: Broker, snapshot: Snapshot) -> list[Count] | None:
    """How many there are of each severity that has some; None while they are worked out."""
    worked = worked_out(broker, snapshot)
    return None if worked is None else _counts(worked.value)


def _shown(broker: Broker, one: Finding, snapshot: Snapshot) -> dict[str, Any]:
    chain = chain_of(one, snapshot)
    commands = one.commands[:MOST_COMMANDS]
    return {
        "line": _line(one),
        "evidence": [(name_of(each.object), each) for each in one.evidence[:MOST_OBJECTS]],
        "more_evidence": max(0, len(one.evidence) - MOST_OBJECTS),
        "commands": "\n".join((set_vhost(broker.vhost), *commands)) if commands else "",
        "has_blanks": any(has_blanks(command) for command in commands),
        "more_commands": len(one.commands) - len(commands),
        "chain": chain,
        "managed": _managed(broker, one),
        "levels": LEVELS,
        "discovered": next((name for kind, name, *_ in one.objects if kind == "topology"), ""),
        "picture": way_picture(chain, snapshot, broker) if chain and len(chain.way) else None,
    }


def _managed(broker: Broker, one: Finding) -> list[Topology]:
    """The topologies that it is about, whose pages have a plan to restore what is missing."""
    found = []
    for row in Topology.objects.filter(broker=broker).exclude(state=State.TORN_DOWN):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            own = {thing.identity for thing in row.pattern.definitions(row.parsed)}
            if own.intersection(one.objects):
                found.append(row)
    return found


def _fits(one: Finding, text: str, severity: str) -> bool:
    if severity not in ("", one.severity.key):
        return False
    names = [one.title, one.rule.id, *(name_of(thing) for thing in one.objects)]
    return not text or any(text in name.casefold() for name in names)


def _line(one: Finding) -> Line:
    return Line(one, _count(one.severity, 1), name_of(one.objects[0]))


def _counts(found: Sequence[Finding]) -> list[Count]:
    numbers = Counter(one.severity for one in found)
    return [_count(severity, numbers[severity]) for severity in sorted(numbers, reverse=True)]


def _count(severity: Severity, number: int) -> Count:
    return Count(severity.key, severity.label, MARKS[severity], number)


def _severities() -> list[tuple[str, str]]:
    return [(severity.key, severity.label) for severity in sorted(Severity, reverse=True)]
