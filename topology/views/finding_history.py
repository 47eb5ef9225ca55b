"""When each finding of a broker appeared and was resolved."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from topology import access
from topology.database import paging
from topology.findings.counts import make_count
from topology.findings.finding import Severity
from topology.models import Broker, FindingPeriod, Role
from topology.operations.finding_rows import find_mutes

PAGE = 50


@require_safe
@access.with_broker(Role.VIEWER)
def finding_history(request: HttpRequest, broker: Broker) -> HttpResponse:
    before = paging.row_number(request.GET.get("before", ""))
    rows = FindingPeriod.objects.filter(broker=broker)
    page, older = paging.newest_page(rows, before, PAGE)
    mutes = find_mutes(broker, timezone.now())
    lines = [(row, make_count(Severity(row.severity), 1), row.key in mutes) for row in page]
    context = {"broker": broker, "lines": lines, "older": older, "before": before}
    return render(request, "topology/finding_history.html", context)
