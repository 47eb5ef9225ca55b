"""The audit log, for admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access
from topology.models import AuditEntry, Role

PAGE = 50


@require_safe
@access.everywhere(Role.ADMIN)
def audit(request: HttpRequest) -> HttpResponse:
    entries = AuditEntry.objects.select_related("broker")
    search = request.GET.get("q", "").strip()
    if search:
        by_action = entries.filter(action__icontains=search)
        entries = (
            by_action
            | entries.filter(what__icontains=search)
            | entries.filter(username__icontains=search)
        )
    before = request.GET.get("before", "")
    if before.isdigit():
        entries = entries.filter(pk__lt=int(before))
    page = list(entries.order_by("-pk")[: PAGE + 1])
    older = page[PAGE - 1].pk if len(page) > PAGE else None
    context = {"entries": page[:PAGE], "older": older, "search": search, "before": before}
    return render(request, "topology/audit.html", context)
