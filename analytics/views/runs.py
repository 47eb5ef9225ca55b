from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from analytics.models import Run
from analytics.models.results import Reason
from analytics.models.run import ExcludedLine
from analytics.views.reports import read_day
from topology import access
from topology.database.paging import read_slice
from topology.models import Role

PAGE = 30


@require_safe
@access.everywhere(Role.VIEWER)
def runs(request: HttpRequest) -> HttpResponse:
    """The nightly runs of all days; they read the events of all brokers."""
    page = read_slice(Run.objects.defer("output"), request.GET.get("after", ""), PAGE)
    at_work = next((run for run in page.rows if run.is_at_work), None)
    return render(request, "analytics/runs.html", {"page": page, "at_work": at_work})


@require_safe
@access.everywhere(Role.VIEWER)
def nightly_run(request: HttpRequest, day: str) -> HttpResponse:
    """The last run of a day: steps, what is excluded, and what its jobs printed."""
    run = get_object_or_404(Run, day=read_day(day))
    context = {
        "run": run,
        "lines": _reasons(run, ExcludedLine),
        "deliveries": _reasons(run, Reason),
    }
    return render(request, "analytics/nightly_run.html", context)


def _reasons(run: Run, reasons: type[ExcludedLine | Reason]) -> list[tuple[str, int]]:
    """The sentence of each reason that anything was excluded for, with its number."""
    return [
        (str(reason.label), run.excluded[reason.value])
        for reason in reasons
        if reason.value in run.excluded
    ]
