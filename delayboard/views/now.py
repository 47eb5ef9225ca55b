"""The first page: what is going on, and what needs somebody."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from delayboard.now.board import BROKER_AGE, overview, shared_overview
from topology import access
from topology.operations.replace_tap import list_stream_taps
from topology.views.audit import readable_entries

ACTIONS = 6


@require_safe
def now(request: HttpRequest) -> HttpResponse:
    """Of all brokers that the user may see, or of the one that is chosen."""
    visible = list(access.visible_brokers(request.user))
    chosen = access.chosen_broker(visible, request.GET.get("broker", ""))
    brokers = [chosen] if chosen else visible
    at = datetime.now(UTC)
    version = request.headers.get("X-Refresh", "")
    # Its live texts are the same for all viewers, the other times of the page are not.
    with timezone.override(None):
        shown = shared_overview(brokers, version, at) or overview(brokers, at, BROKER_AGE)
    actions = readable_entries(request.user).filter(broker__in=brokers)
    context = {
        "overview": shown,
        "at": shown.at,
        "broker": chosen,
        "brokers": visible,
        "live": ",".join(str(broker.pk) for broker in brokers),
        "stream_taps": list_stream_taps(request.user, brokers),
        "actions": actions[:ACTIONS] if access.may_audit(request.user) else None,
    }
    return render(request, "delayboard/now.html", context)
