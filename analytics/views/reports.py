from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics import nightly
from analytics.models import Run, Slo
from analytics.models.slo import Within
from analytics.results import period as ranges
from analytics.results.headline import KeyFigure, key_figures
from analytics.results.period import Period, read_period
from analytics.results.read import Report, Selection, choices, newest_day, report
from analytics.results.sections import percent, sections
from analytics.results.slo import attainment
from analytics.results.summary import summarize
from analytics.views.figures import figures, heat
from topology import access, audit
from topology.models import Broker, Role, Topology
from topology.patterns.table import PATTERNS

SHOWN_RUNS = 14
# Drawn side by side, and tables without a chart.
CHARTS = ("delays", "survival", "distribution", "failures", "dead_letters", "heat", "throughput")
OF_RETRIES = frozenset(
    {"survival", "failures", "dead_letters", "heat", "causes", "handled", "recovery"}
)


@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    visible = list(access.visible_brokers(request.user))
    brokers = _brokers(request, visible)
    period, problem = _period(request)
    found = report(period, brokers, _selection(request))
    made = _sections(found)
    topology = Topology.objects.filter(slug=found.selection.topology, broker__in=brokers).first()
    drawn = figures(made, found.slo)
    runs = list(Run.objects.all()[:SHOWN_RUNS])
    of_range = [run for run in runs if period.first <= run.day <= period.last]
    context = {
        "report": found,
        "period": period,
        "ranges": ranges.LABELS,
        "problem": problem,
        "brokers": visible,
        "wanted_broker": request.GET.get("broker", ""),
        "choices": choices(period, brokers),
        "patterns": {kind: pattern.EXPLANATION.title for kind, pattern in PATTERNS.items()},
        "sentences": summarize(period, found.total, found.days, found.suspects),
        # A figure without a table is unknown, and no zero.
        "key_figures": [figure for figure in _key_figures(found) if figure.section in made],
        "topology": topology,
        "may_set_slo": topology is not None
        and access.may(request.user, topology.broker, Role.OPERATOR),
        "limits": Within.choices,
        "budget": _budget(found),
        "main": made["lateness"],
        "charts": [made[key] for key in CHARTS if key in made],
        "tables": [
            made[key] for key in ("recovery", "causes", "handled", "uncounted") if key in made
        ],
        "sections": made,
        "figures": drawn,
        "heat": heat(made["heat"]) if "heat" in made else None,
        "runs": runs,
        "at_work": next((run for run in of_range if run.is_at_work), None),
        "run": of_range[0] if period.length == 1 and of_range else None,
        "may_run": access.visible_brokers(request.user, Role.OPERATOR).exists(),
    }
    return render(request, "analytics/reports.html", context)


@require_safe
def table(request: HttpRequest, key: str) -> HttpResponse:
    """One table of the report with the same filters, as CSV."""
    brokers = _brokers(request, list(access.visible_brokers(request.user)))
    period, problem = _period(request)
    if problem:
        return HttpResponse(problem, status=400, content_type="text/plain; charset=utf-8")
    section = _sections(report(period, brokers, _selection(request))).get(key)
    if section is None:
        raise Http404(f"The report has no table “{key}”.")
    name = f"{key.replace('_', '-')}-{period.first}-{period.last}.csv"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    answer = HttpResponse(content_type="text/csv; charset=utf-8", headers=disposition)
    csv.writer(answer).writerows(section.csv_rows())
    return answer


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Ask for a day; the worker picks it up."""
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    text = request.POST.get("day", "")
    try:
        day = date.fromisoformat(text)
    except ValueError:
        messages.error(request, f"“{text}” is not a date. Write it like 2026-11-20.")
        return redirect("analytics:reports")
    try:
        with audit.recorded(request.user, "nightly run requested", what=day.isoformat()):
            nightly.want(day)
        messages.success(request, f"The worker computes {day} next.")
    except nightly.DayRefused as refusal:
        messages.error(request, str(refusal))
    return redirect(f"{reverse('analytics:reports')}?from={day}&to={day}")


@require_POST
def slo(request: HttpRequest) -> HttpResponse:
    """Set the target of a topology, or delete it where no share is given."""
    slug = request.POST.get("topology", "")
    topology = get_object_or_404(
        Topology, slug=slug, broker__in=access.visible_brokers(request.user)
    )
    access.require(request.user, topology.broker, Role.OPERATOR)
    page = f"{reverse('analytics:reports')}?{urlencode({'topology': slug})}"
    share, within_ms = (request.POST.get(name, "") for name in ("percent", "within_ms"))
    if share.strip() and not _is_target(share, within_ms):
        messages.error(request, "The target is not valid. Set 1 to 99.999 % and a limit.")
        return redirect(page)
    what = f"{share} % within {within_ms} ms" if share.strip() else "no target"
    with audit.recorded(
        request.user, "SLO changed", broker=topology.broker, what=f"{slug}: {what}"
    ):
        if share.strip():
            values = {"percent": float(share), "within_ms": int(within_ms)}
            Slo.objects.update_or_create(topology=topology, defaults=values)
        else:
            Slo.objects.filter(topology=topology).delete()
    messages.success(request, f"The target of {topology.name} is saved.")
    return redirect(page)


def _is_target(share: str, within_ms: str) -> bool:
    try:
        is_share = 1 <= float(share) <= 99.999
    except ValueError:
        return False
    return is_share and within_ms in {str(value) for value in Within.values}


def _key_figures(found: Report) -> list[KeyFigure]:
    within_ms = found.slo.within_ms if found.slo else None
    return key_figures(found.total, found.previous, within_ms=within_ms)


def _budget(found: Report) -> dict[str, str] | None:
    """Attainment of the range, and what is left of the error budget; None without a target."""
    if found.slo is None:
        return None
    target = (found.slo.percent, found.slo.within_ms)
    now, month = (attainment(figures, *target) for figures in (found.total, found.budget))
    if now.share is None or month.budget_left is None or now.burn_rate is None:
        return None
    return {
        "Target": str(found.slo),
        "Attainment": percent(now.share),
        "Error budget left (28 days)": percent(month.budget_left),
        "Burn rate": f"{now.burn_rate:.2f}",
    }


def _brokers(request: HttpRequest, visible: list[Broker]) -> list[Broker]:
    chosen = access.chosen_broker(visible, request.GET.get("broker", ""))
    return [chosen] if chosen else visible


def _period(request: HttpRequest) -> tuple[Period, str]:
    """The range asked for, up to yesterday or a newer day that was computed; what was wrong."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    return read_period(request.GET, max(newest_day() or yesterday, yesterday))


def _selection(request: HttpRequest) -> Selection:
    names = ("topology", "pattern", "destination")
    return Selection(**{name: request.GET.get(name, "").replace("\x00", "") for name in names})


def _sections(found: Report) -> dict[str, Any]:
    """The tables that make sense of what is selected."""
    return dict(_shown(found))


def _shown(found: Report) -> Iterator[tuple[str, Any]]:
    is_all = found.selection == Selection()
    for key, section in sections(found).items():
        if key in OF_RETRIES and not found.selection.has_retries:
            continue
        if key in ("dead_letters", "handled") and not is_all:
            continue
        if key == "slo" and found.slo is None:
            continue
        if key == "exact" and found.period.length > 1:
            continue
        yield key, section
