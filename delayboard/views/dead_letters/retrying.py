"""Messages between two attempts, in retry loops and ladders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from analytics.scheduled.queries import search
from analytics.scheduled.queries.filter import parse
from analytics.scheduled.queries.listing import read_place
from delayboard.dead_letters import retrying as retry_list
from topology import access, redaction, snapshots
from topology.models import Broker, Role
from topology.operations import adopt
from topology.patterns.table import PATTERNS
from topology.snapshot import Snapshot
from topology.views.brokers.discovered_topologies import recognize_snapshot

SHOWN = 50


@require_safe
def retrying_anywhere(request: HttpRequest) -> HttpResponse:
    """Of the broker that is chosen, or of the first that the user may see."""
    visible, broker = access.choose_brokers(request)
    if broker is not None:
        return redirect("retrying", broker.slug)
    return _page(request, visible[0] if visible else None, visible)


@require_safe
@access.with_broker(Role.VIEWER)
def retrying(request: HttpRequest, broker: Broker) -> HttpResponse:
    """What waits for its next attempt, the soonest due first."""
    return _page(request, broker, list(access.visible_brokers(request.user)))


def _page(request: HttpRequest, broker: Broker | None, visible: list[Broker]) -> HttpResponse:
    context: dict[str, Any] = {"broker": broker, "brokers": visible}
    if broker is not None:
        now = datetime.now(UTC)
        known = snapshots.fresh(broker)
        hidden = redaction.rules_for(request.user, broker)
        filters = search.allowed(parse(request.GET.dict(), now), [broker], {broker.pk: hidden})
        place = read_place(request.GET.get("after", ""))
        context |= {
            "latest": known,
            "operated": list(access.visible_brokers(request.user, Role.OPERATOR)),
            **(_others(broker, known.snapshot) if known.snapshot else {}),
            "filters": filters,
            "listing": retry_list.retrying(
                broker, filters, known.snapshot, now, hidden=hidden, place=place
            ),
        }
    return render(request, "delayboard/retrying.html", context)


def _others(broker: Broker, snapshot: Snapshot) -> dict[str, Any]:
    """What retries in the broker and is managed by nobody: only how much waits there is known."""
    worked = recognize_snapshot(broker, snapshot)
    if worked is None:
        return {"others_are_unknown": True}
    found = [one for one in worked.value.found if PATTERNS[one.use.kind].ATTEMPTS_COUNTED_BY]
    others = adopt.list_unmanaged(broker, found)
    others.sort(key=lambda one: -(one.waiting or 0))
    return {
        "others": [(one, PATTERNS[one.use.kind].EXPLANATION.title) for one in others[:SHOWN]],
        "others_total": len(others),
    }
