"""The audit log, for admins: of all brokers, or of those that they are admin of."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access
from topology.database import paging
from topology.models import AuditEntry, Role

PAGE = 50


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    if not access.may_audit(request.user):
        raise PermissionDenied("This page needs the role admin on a broker.")
    entries = readable_entries(request.user)
    search = request.GET.get("q", "").strip()
    if search:
        entries = entries.filter(
            Q(action__icontains=search) | Q(what__icontains=search) | Q(username__icontains=search)
        )
    page = paging.read_page(entries, request.GET.get("after", ""), PAGE)
    return render(request, "topology/audit.html", {"page": page, "search": search})


def readable_entries(user: access.User) -> QuerySet[AuditEntry]:
    entries = AuditEntry.objects.select_related("broker")
    if access.may(user, None, Role.ADMIN):
        return entries
    return entries.filter(broker__in=access.visible_brokers(user, Role.ADMIN))
