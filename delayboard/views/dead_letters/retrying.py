"""Messages between two attempts, in retry loops and ladders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import parse
from delayboard.dead_letters import retrying as retry_list
from topology import access, redaction, snapshots
from topology.database.paging import row_number
from topology.models import Broker, Role
from topology.operations import adopt
from topology.patterns.table import KINDS
from topology.provisioning.recognition import Found
from topology.views.brokers.discovered_topologies import recognize_snapshot

SHOWN = 50


@require_safe
def retrying_anywhere(request: HttpRequest) -> HttpResponse:
    """The page Retrying of all brokers that the user may see, or of the chosen one."""
    choice = access.choose_brokers(request)
    if choice.chosen is not None:
        return redirect("retrying", choice.chosen.slug)
    return _page(request, choice.visible)


@require_safe
@access.with_broker(Role.VIEWER)
def retrying(request: HttpRequest, broker: Broker) -> HttpResponse:
    """What waits for its next attempt, the soonest due first."""
    return _page(request, [broker])


def _page(request: HttpRequest, brokers: list[Broker]) -> HttpResponse:
    now = datetime.now(UTC)
    known = dict(zip(brokers, snapshots.fresh_all(brokers), strict=True))
    hidden = redaction.rules_by_broker(request.user, brokers)
    filters = listing.allowed(parse(request.GET.dict(), now), brokers, hidden)
    after = row_number(request.GET.get("after", ""))
    read = {broker: one.snapshot for broker, one in known.items() if one.snapshot}
    only = brokers[0] if len(brokers) == 1 else None
    # Of what nobody manages, only how much waits there is known.
    others: list[tuple[Broker, Found]] = []
    unknown = []
    for broker, snapshot in read.items():
        worked = recognize_snapshot(broker, snapshot)
        if worked is None:
            unknown.append(broker)
            continue
        found = [one for one in worked.value.found if KINDS[one.use.kind].ATTEMPTS_COUNTED_BY]
        others += [(broker, one) for one in adopt.list_unmanaged(broker, found)]
    others.sort(key=lambda pair: -(pair[1].waiting or 0))
    context: dict[str, Any] = {
        "brokers": brokers,
        "broker": only,
        "shows_brokers": only is None,
        "latest": known[only] if only else None,
        "operated": list(access.visible_brokers(request.user, Role.OPERATOR)),
        "others": [
            (broker, one, KINDS[one.use.kind].EXPLANATION.title) for broker, one in others[:SHOWN]
        ],
        "others_total": len(others),
        "others_are_unknown": unknown,
        "filters": filters,
        "after": after,
        "listing": retry_list.retrying(brokers, filters, read, now, hidden=hidden, after=after),
    }
    return render(request, "delayboard/retrying.html", context)
