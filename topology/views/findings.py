"""Findings: computed once for each snapshot, counted for every broker, listed for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from topology import access, snapshots
from topology.broker.errors import BrokerError
from topology.database import paging
from topology.database.paging import read_slice
from topology.findings.find import Finder
from topology.findings.finding import Finding, chain_of
from topology.findings.hit import (
    LONGEST_NAME_BYTES,
    Admin,
    Count,
    Severity,
    describe_blanks,
    insert_vhost,
    make_count,
    make_counts,
    name_tool,
    warn_about,
)
from topology.findings.remedy import Remedy, describe_policies, make_remedy
from topology.findings.report import name_of
from topology.findings.rules import cycles, live
from topology.forms.mute import MuteForm
from topology.models import Broker, FindingPeriod, Role, State, Topology
from topology.operations.apply_remedy import apply_remedy, explain_in_use, plan_replaced
from topology.operations.finding_rows import (
    count_open,
    find_mutes,
    find_pending,
    mute_finding,
    unmute_finding,
    with_reports,
)
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.pattern import ParamsError
from topology.provisioning.plan import make_plan, title
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.diagram import draw_path
from topology.views.sorting import read_sort

PAGE = 50

_results: SnapshotResults[tuple[Finding, ...]] = SnapshotResults()
_finder = Finder()
MOST_OBJECTS = 200
MOST_COMMANDS = 200
MOST_PERIODS = 10
HISTORY_PAGE = 50
# Rules whose messages are peeked, parked or moved on the page of the queue.
_ON_QUEUE_PAGE = (
    live.NOT_DRAINING,
    live.BLOCKED,
    live.UNCONSUMED,
    live.GROWING,
    live.UNREAD,
)


# Rules whose findings a retry topology ends.
_ENDED_BY_RETRIES = (cycles.DROPPED, cycles.FOR_EVER)


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


# Orders of the list besides severity, in which findings are found.
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
class FindingLine:
    """A finding in a list, with the first of its objects in words."""

    finding: Finding
    severity: Count
    first: str

    @property
    def others(self) -> int:
        return len(self.finding.objects) - 1


def get_findings(broker: Broker, snapshot: Snapshot) -> Worked[tuple[Finding, ...]] | None:
    """The findings; of a virtual host with very much in it computed beside this request, None until
    it is done.
    """
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


def lines_of(topology: Topology, snapshot: Snapshot) -> list[FindingLine] | None:
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
    """Id of a topology -> counts, from what was last known of each broker; without those that are
    unknown.
    """
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
    """The findings about objects of the topology. Raises ParamsError."""
    if not found:
        return []
    own = {obj.identity for obj in topology.pattern.definitions(topology.parsed)}
    return [one for one in found if own.intersection(one.objects)]


def make_line(one: Finding) -> FindingLine:
    return FindingLine(one, make_count(one.severity, 1), name_of(one.objects[0]))


def count_by_severity(found: Iterable[Finding]) -> list[Count]:
    return make_counts(Counter(one.severity for one in found))


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
@access.with_broker(Role.OPERATOR)
def finding_apply(request: HttpRequest, broker: Broker, key: str) -> HttpResponse:
    """Create what the remedy lists, as the finding is now; on production with the broker's name."""
    _, worked = read_findings(broker)
    one = _find(worked, key)
    queue = request.POST.get("queue", "").strip()
    remedy = make_remedy(one, worked.snapshot, queue) if worked and one else None
    typed = request.POST.get("confirm_broker", "").strip()
    owners = _managed(broker, one, remedy) if one else []
    if one is None or remedy is None or _is_planned(owners, remedy):
        messages.error(request, "Nothing was changed. The finding is already resolved.")
    elif len(queue.encode()) > LONGEST_NAME_BYTES or "\x00" in queue:
        messages.error(request, "Nothing was changed. Enter a shorter name of the queue.")
    elif refusal := access.production_refusal(broker, typed):
        messages.error(request, f"Nothing was changed. {refusal}")
    elif remedy.replaced and "stopped" not in request.POST:
        messages.error(request, "Nothing was changed. Confirm that the publishers are stopped.")
    elif remedy.replaced and request.POST.get("replaced") != remedy.digest:
        messages.error(request, "Nothing was changed. The plan changed. Open the finding again.")
    else:
        owner = owners[0] if len(owners) == 1 else None
        try:
            plan = apply_remedy(request.user, broker, one.title, remedy, owner)
        except (Refusal, BrokerError) as error:
            messages.error(request, f"Remedy not completed. {error}")
        else:
            made = [change.title for change in plan.select("create")]
            made += [f"policy {policy.name}" for policy in remedy.policies]
            made += [f"{title(one)} replaced" for one in remedy.replaced]
            messages.success(request, f"Applied: {', '.join(made) or 'all objects exist'}.")
            snapshots.poll(broker)
            return redirect("topology:findings", broker_slug=broker.slug)
    return redirect("topology:finding", broker_slug=broker.slug, key=key)


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
        typed = request.GET.get("queue", "").strip()
        remedy = make_remedy(one, worked.snapshot, typed)
        context |= _shown(broker, one, worked.snapshot)
        context["managed"] = _managed(broker, one, remedy)
        if remedy and _is_planned(context["managed"], remedy):
            context["is_planned"] = True
        elif remedy:
            context |= {
                "remedy": remedy,
                "plan": make_plan(remedy.objects, worked.snapshot),
                "policies": list(describe_policies(remedy)),
                "replaced": plan_replaced(remedy, worked.snapshot),
                "in_use": explain_in_use(remedy, worked.snapshot),
            }
    return render(request, "topology/finding.html", context)


def _shown(broker: Broker, one: Finding, snapshot: Snapshot) -> dict[str, Any]:
    chain, admin = chain_of(one, snapshot), Admin(snapshot.version_tuple)
    commands = one.commands[:MOST_COMMANDS]
    endless = one.objects[:MOST_COMMANDS] if one.rule == cycles.FOR_EVER else ()
    parking = [cycles.describe_parking(queue, snapshot) for _, queue, *_ in endless]
    is_admin_needed = [*commands, *(command for _, command, _ in parking)]
    names = [obj[1] for obj in one.objects if obj[0] == "queue"]
    return {
        "line": make_line(one),
        "evidence": [(name_of(each.object), each) for each in one.evidence[:MOST_OBJECTS]],
        "more_evidence": max(0, len(one.evidence) - MOST_OBJECTS),
        "code": _make_block(broker, commands),
        "parking_lines": [lines for _, _, lines in parking],
        "existing": [queue for queue, command, _ in parking if not command],
        "declares": _make_block(broker, [command for _, command, _ in parking if command]),
        "uses_rabbitmqctl": any("rabbitmqctl" in command for command in commands),
        "tool": name_tool(
            is_admin_needed, admin, admin.connect(broker.management_url, broker.username)
        ),
        "warning": warn_about(commands),
        "blanks": describe_blanks(commands),
        "more_commands": len(one.commands) - len(commands),
        "chain": chain,
        "queue": (
            names[0]
            if names and (one.rule in _ON_QUEUE_PAGE or one.severity >= Severity.STUCK)
            else ""
        ),
        "makes_retries": one.rule in _ENDED_BY_RETRIES,
        "levels": LEVELS,
        "discovered": next((name for kind, name, *_ in one.objects if kind == "topology"), ""),
        "diagram": draw_path(chain, snapshot, broker, one.objects)
        if chain and len(chain.path)
        else None,
    }


def _make_block(broker: Broker, commands: Sequence[str]) -> tuple[str, str]:
    """All of them as one text, and the words of its button; "" for the usual ones."""
    text = "\n".join(insert_vhost(command, broker.vhost) for command in commands)
    return text, f"Copy all {len(commands)} commands" if len(commands) > 1 else ""


def _is_planned(managed: Sequence[Topology], remedy: Remedy) -> bool:
    """Whether the plan of a topology creates some of it, with the arguments of its pattern."""
    return any(
        remedy.identities.intersection(obj.identity for obj in row.pattern.definitions(row.parsed))
        for row in managed
    )


def _managed(broker: Broker, one: Finding, remedy: Remedy | None) -> list[Topology]:
    """The topologies that it or its remedy is about, whose pages have a plan to restore what is
    missing."""
    concerned = {*one.objects, *(remedy.identities if remedy else ())}
    found = []
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            own = {obj.identity for obj in row.pattern.definitions(row.parsed)}
            if own & concerned:
                found.append(row)
    return found
