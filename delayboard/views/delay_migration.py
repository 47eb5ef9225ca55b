"""The migration of waiting messages: the dry run, the order of steps, and the progress."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from delayboard.delay_migration.check import check
from delayboard.models import DelayMigration
from topology import access
from topology.broker.errors import BrokerError
from topology.models import Role, State, Topology
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.views.topologies import with_topology


@require_safe
@with_topology(Role.OPERATOR)
def migrate_delays(request: HttpRequest, source: Topology) -> HttpResponse:
    """What a migration to the chosen target would do; nothing is changed here."""
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    targets = Topology.objects.filter(kind=LEVELS, state=State.APPLIED, broker__in=operated)
    targets = targets.exclude(pk=source.pk).select_related("broker").order_by("name")
    latest = DelayMigration.objects.filter(source=source, target__broker__in=operated)
    context: dict[str, Any] = {
        "source": source,
        "targets": targets,
        "migration": latest.select_related("target", "work").first(),
    }
    if slug := request.GET.get("target"):
        target = context["target"] = targets.filter(slug=slug).first()
        if target is None:
            raise Http404("No delay levels with this name can be a target.")
        try:
            context["found"] = check(source, target, datetime.now(UTC))
        except (Refusal, BrokerError) as error:
            context["problem"] = str(error)
    return render(request, "delayboard/delay_migration.html", context)
