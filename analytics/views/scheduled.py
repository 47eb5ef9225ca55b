"""What waits in the delays: due when, for whom, and what should have left by now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from analytics import scheduled as index
from analytics.models import Gap, ScheduledMessage
from topology import access, paging
from topology.models import Topology

PAGE = 50
SHOWN_GAPS = timedelta(days=1)


@require_safe
def scheduled(request: HttpRequest) -> HttpResponse:
    brokers = access.visible_brokers(request.user)
    topology = request.GET.get("topology", "")
    now = datetime.now(UTC)
    waiting = index.waiting(brokers, topology_slug=topology, now=now)
    place = _place(request.GET.get("after", ""))
    page = index.page_after(waiting, place, PAGE + 1)
    gaps = Gap.objects.filter(topology__broker__in=brokers, until_at__gt=now - SHOWN_GAPS)
    context = {
        "rows": [(row, row.overdue_by(now) > index.OVERDUE_AFTER) for row in page[:PAGE]],
        "waiting": waiting.count(),
        "overdue": index.overdue(waiting, now).count(),
        "topologies": Topology.objects.filter(broker__in=brokers),
        "topology_slug": topology,
        "unobserved": [one for one in Topology.unobserved() if one.broker in brokers],
        "unread": index.unread(brokers, now),
        "gaps": gaps.select_related("topology"),
        "is_first": place is None,
        "next_query": _after(page[PAGE - 1], topology) if len(page) > PAGE else "",
    }
    return render(request, "analytics/scheduled.html", context)


def _place(text: str) -> tuple[datetime, int] | None:
    """The due time and id that a page begins after, as `_after` wrote it; None for the first."""
    moment, _, row_text = text.partition(",")
    row_id = paging.row_number(row_text)
    try:
        due_at = datetime.fromisoformat(moment)
        # A moment of the first or the last day may have none in UTC.
        return (due_at.astimezone(UTC), row_id) if due_at.tzinfo and row_id is not None else None
    except (ValueError, OverflowError):
        return None


def _after(row: ScheduledMessage, topology: str) -> str:
    due_at = row.due_at.isoformat() if row.due_at else ""
    return "?" + urlencode({"topology": topology, "after": f"{due_at},{row.pk}"})
