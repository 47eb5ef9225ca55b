"""The reports of a day, and the wish to have one computed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics import nightly, results
from analytics.models import Run
from analytics.views.figures import bucket_label, figures
from topology import access, audit
from topology.models import Role

SHOWN_RUNS = 14


@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    visible = access.visible_brokers(request.user)
    wanted = request.GET.get("broker", "")
    chosen = access.chosen_broker(visible, wanted)
    brokers = [chosen] if chosen else list(visible)
    day, problem = _day(request.GET.get("day", ""))
    report = results.report(day, brokers)
    context = {
        "report": report,
        "figures": figures(report),
        "buckets": [(bucket, bucket_label(bucket)) for bucket in report.histogram],
        "brokers": visible,
        "wanted_broker": wanted,
        "runs": Run.objects.all()[:SHOWN_RUNS],
        "may_run": access.visible_brokers(request.user, Role.OPERATOR).exists(),
        "problem": problem,
        "previous_day": day - timedelta(days=1) if day > date.min else None,
        "next_day": day + timedelta(days=1) if day < _today() else None,
    }
    return render(request, "analytics/reports.html", context)


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Ask for a day; the worker picks it up."""
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    day, problem = _day(request.POST.get("day", ""))
    if problem:
        messages.error(request, problem)
        return redirect("analytics:reports")
    try:
        with audit.recorded(request.user, "nightly run requested", what=day.isoformat()):
            nightly.want(day)
        messages.success(request, f"The worker computes {day} next.")
    except nightly.DayRefused as refusal:
        messages.error(request, str(refusal))
    return redirect(f"{reverse('analytics:reports')}?day={day.isoformat()}")


def _day(text: str) -> tuple[date, str]:
    """The day asked for, else the newest with results, else yesterday; and what was wrong."""
    problem = ""
    if text:
        try:
            return date.fromisoformat(text), ""
        except ValueError:
            problem = f"“{text}” is not a date. Write it like 2026-11-20."
    return results.newest_day() or _today() - timedelta(days=1), problem


def _today() -> date:
    return datetime.now(UTC).date()
