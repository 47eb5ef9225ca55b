"""One finding with its chain, muting it, and the history of a broker's findings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from topology import access
from topology.database import paging
from topology.findings.commands import (
    Admin,
    describe_blanks,
    insert_vhost,
    name_tool,
    warn_about,
)
from topology.findings.evidence import Severity, make_count
from topology.findings.finding import Finding, chain_of
from topology.findings.report import name_of
from topology.findings.rules import cycles, live
from topology.forms.mute import MuteForm
from topology.models import Broker, FindingPeriod, Role, State, Topology
from topology.operations.finding_rows import (
    find_mutes,
    find_pending,
    mute_finding,
    unmute_finding,
)
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.views.background import Worked
from topology.views.diagram import draw_path
from topology.views.findings.listing import make_line, read_findings

MOST_OBJECTS = 200
MOST_COMMANDS = 200
MOST_BUTTONS = 3
"""More commands are one block, with one button."""
MOST_PERIODS = 10
HISTORY_PAGE = 50
# Their messages are peeked, parked or moved on the page of the queue.
_ON_QUEUE_PAGE = (
    live.NOT_DRAINING,
    live.BLOCKED,
    live.UNCONSUMED,
    live.GROWING,
    live.UNREAD,
)


@require_safe
@access.with_broker(Role.VIEWER)
def finding_history(request: HttpRequest, broker: Broker) -> HttpResponse:
    """When each finding of a broker appeared and was resolved."""
    rows = FindingPeriod.objects.filter(broker=broker)
    page = paging.read_page(rows, request.GET.get("after", ""), HISTORY_PAGE)
    mutes = find_mutes(broker, timezone.now())
    lines = [(row, make_count(Severity(row.severity), 1), row.key in mutes) for row in page.rows]
    context = {"broker": broker, "lines": lines, "page": page}
    return render(request, "topology/finding_history.html", context)


@require_safe
@access.with_broker(Role.VIEWER)
def finding(request: HttpRequest, broker: Broker, key: str) -> HttpResponse:
    return _page(request, broker, key, MuteForm())


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def finding_mute(request: HttpRequest, broker: Broker, key: str) -> HttpResponse:
    form = MuteForm(request.POST)
    _, worked = read_findings(broker)
    one = _find(worked, key)
    if worked is None:
        messages.error(
            request, "Finding not muted, because the findings are not computed yet. Try again."
        )
    elif one is None:
        messages.error(request, "Finding not muted. It is already resolved.")
    elif not form.is_valid():
        return _page(request, broker, key, form)
    else:
        until_at = form.cleaned_data["until"]
        mute_finding(
            request.user, broker, one, reason=form.cleaned_data["reason"], until_at=until_at
        )
        messages.success(request, f"Finding muted until {until_at:%Y-%m-%d %H:%M} UTC.")
    return redirect("topology:finding", broker_slug=broker.slug, key=key)


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def finding_unmute(request: HttpRequest, broker: Broker, key: str) -> HttpResponse:
    if unmute_finding(request.user, broker, key):
        messages.success(request, "Finding unmuted.")
    return redirect("topology:finding", broker_slug=broker.slug, key=key)


def _find(worked: Worked[tuple[Finding, ...]] | None, key: str) -> Finding | None:
    return next((each for each in worked.value if each.key == key), None) if worked else None


def _page(request: HttpRequest, broker: Broker, key: str, form: MuteForm) -> HttpResponse:
    known, worked = read_findings(broker)
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
        "key": key,
        "form": form,
        "mute": find_mutes(broker, timezone.now()).get(key),
        "periods": FindingPeriod.objects.filter(broker=broker, key=key)[:MOST_PERIODS],
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
    }
    one = _find(worked, key)
    if worked is not None and one is None:
        pending = find_pending(broker, worked.snapshot, worked.value)
        context["pending"] = next((row for row in pending if row.key == key), None)
    if worked is not None and one is not None:
        context |= _shown(broker, one, worked.snapshot)
    return render(request, "topology/finding.html", context)


def _shown(broker: Broker, one: Finding, snapshot: Snapshot) -> dict[str, Any]:
    chain, admin = chain_of(one, snapshot), Admin(snapshot.version_tuple)
    commands = one.commands[:MOST_COMMANDS]
    endless = one.objects[:MOST_COMMANDS] if one.rule == cycles.FOR_EVER else ()
    parking = [cycles.describe_parking(queue, snapshot) for _, queue, *_ in endless]
    is_admin_needed = [*commands, *(command for _, command, _ in parking)]
    return {
        "line": make_line(one),
        "evidence": [(name_of(each.object), each) for each in one.evidence[:MOST_OBJECTS]],
        "more_evidence": max(0, len(one.evidence) - MOST_OBJECTS),
        "blocks": _make_blocks(broker, commands),
        "parking_lines": [lines for _, _, lines in parking],
        "existing": [queue for queue, command, _ in parking if not command],
        "declares": _make_blocks(broker, [command for _, command, _ in parking if command]),
        "uses_rabbitmqctl": any("rabbitmqctl" in command for command in commands),
        "tool": name_tool(
            is_admin_needed, admin, admin.connect(broker.management_url, broker.username)
        ),
        "warning": warn_about(commands),
        "blanks": describe_blanks(commands),
        "more_commands": len(one.commands) - len(commands),
        "chain": chain,
        "managed": _managed(broker, one),
        "queue": one.objects[0][1] if one.rule in _ON_QUEUE_PAGE else "",
        "levels": LEVELS,
        "discovered": next((name for kind, name, *_ in one.objects if kind == "topology"), ""),
        "diagram": draw_path(chain, snapshot, broker, one.objects)
        if chain and len(chain.path)
        else None,
    }


def _make_blocks(broker: Broker, commands: Sequence[str]) -> list[tuple[str, str]]:
    """Each with the words of its button; "" for the usual ones."""
    texts = [insert_vhost(command, broker.vhost) for command in commands]
    if len(texts) > MOST_BUTTONS:
        return [("\n".join(texts), f"Copy all {len(texts)} commands")]
    return [(text, "") for text in texts]


def _managed(broker: Broker, one: Finding) -> list[Topology]:
    """The topologies that it is about, whose pages have a plan to restore what is missing."""
    found = []
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            own = {obj.identity for obj in row.pattern.definitions(row.parsed)}
            if own.intersection(one.objects):
                found.append(row)
    return found
