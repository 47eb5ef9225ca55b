"""Dead letters: what died of the same cause, and the queues where more of it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from delayboard.dead_letters.parked import group_trend, groups
from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.confirmed import Queues, destinations, queues
from delayboard.dead_letters.queues.feeds import Feeds, feeds
from delayboard.models import MessageGroup
from topology import access, redaction, snapshots
from topology.models import Broker, Role
from topology.redaction import Redaction
from topology.snapshots import Latest
from topology.views.cache import SnapshotCache

# A page of ten thousand queues takes a second and three megabytes.
MOST_CANDIDATES = 300

_fed = SnapshotCache[Feeds]()


@require_safe
def dead_letters(request: HttpRequest) -> HttpResponse:
    """The groups of the chosen broker, and its queues: confirmed, proposed, others."""
    visible, chosen = access.choose_brokers(request)
    broker = chosen or next(iter(visible), None)
    context: dict[str, Any] = {"brokers": visible, "broker": broker}
    if broker is not None:
        known = snapshots.fresh(broker)
        group_filter = groups.parse(request.GET.dict())
        now = datetime.now(UTC)
        context |= {
            "latest": known,
            "group_filter": group_filter,
            "queues": _queues(broker, known, group_filter.text, now),
            "may_operate": access.may(request.user, broker, Role.OPERATOR),
            "may_redact": access.may(request.user, broker, Role.ADMIN),
            "next": request.get_full_path(),
        }
        rules = redaction.rules_for(request.user, broker)
        context |= _groups(broker, group_filter, rules, request.GET.get("trend", ""), now)
    return render(request, "delayboard/dead_letters.html", context)


def _groups(
    broker: Broker, group_filter: groups.GroupFilter, rules: Redaction, trend: str, now: datetime
) -> dict[str, Any]:
    page = groups.page(broker, group_filter, rules)
    span = trend if trend in group_trend.SPANS else "day"
    drawn = group_trend.trends(page.groups, group_trend.SPANS[span], now)
    return {
        "page": page,
        "lines": [(group, drawn[group.pk]) for group in page.groups],
        "sorts": groups.SORTS,
        "spans": group_trend.SPANS,
        "span": span,
        "has_groups": MessageGroup.objects.filter(broker=broker).exists(),
    }


def _queues(broker: Broker, known: Latest, text: str, now: datetime) -> Queues:
    found = find_candidates(broker, known)
    is_current = known.is_reachable
    return queues(broker, found, text, now, most=MOST_CANDIDATES, is_current=is_current)


def find_candidates(broker: Broker, known: Latest) -> list[Candidate] | None:
    """None while the broker has never answered."""
    snapshot = known.snapshot
    if snapshot is None:
        return None
    fed = _fed.get(broker.pk, snapshot, lambda: feeds(snapshot))
    return candidates(snapshot, destinations(broker, snapshot), fed)
