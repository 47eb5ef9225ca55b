"""The first page: what is going on, and what needs somebody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_safe

from delayboard.now.board import BROKER_AGE, SHARED_AGE, VIEWS, Overview, overview, shared_overview
from topology import access
from topology.views.audit import readable_entries

ACTIONS = 6
# What was fetched again, and when, by all that it depends on: all open pages fetch at once.
_refreshed: dict[tuple[object, ...], tuple[datetime, str]] = {}


@require_safe
def now(request: HttpRequest) -> HttpResponse:
    """Of all brokers that the user may see, or of the one that is chosen."""
    choice = access.choose_brokers(request)
    brokers = choice.shown
    at = datetime.now(UTC)
    version = request.headers.get("X-Refresh", "")
    if shared := shared_overview(brokers, version, at):
        return HttpResponse(_refresh(request, shared, choice))
    # Its live texts are the same for all viewers, the other times of the page are not.
    with timezone.override(None):
        shown = overview(brokers, at, BROKER_AGE)
    context = _context(request, shown, choice)
    return render(request, "delayboard/now.html", context | {"layout": "base.html"})


def _refresh(request: HttpRequest, shown: Overview, choice: access.BrokerChoice) -> str:
    """The parts that an open page takes over, rendered once for viewers with equal rights."""
    zone, rights = timezone.get_current_timezone_name(), access.read_rights(request.user)
    names = tuple((row.pk, row.name) for row in choice.visible)
    key = (shown.version, choice.chosen and choice.chosen.pk, names, rights, zone)
    at, text = _refreshed.get(key, (shown.at, ""))
    if text and shown.at - at < SHARED_AGE:
        return text
    context = _context(request, shown, choice) | {"layout": "refresh.html"}
    text = render_to_string("delayboard/now.html", context, request)
    # A copy: other threads add and remove meanwhile.
    for old, (made_at, _) in list(_refreshed.items()):
        if shown.at - made_at > SHARED_AGE:
            _refreshed.pop(old, None)
    _refreshed[key] = shown.at, text
    return text


def _context(request: HttpRequest, shown: Overview, choice: access.BrokerChoice) -> dict[str, Any]:
    brokers = choice.shown
    actions = readable_entries(request.user).filter(broker__in=brokers).exclude(action__in=VIEWS)
    return {
        "overview": shown,
        "at": shown.at,
        "broker": choice.chosen,
        "brokers": choice.visible,
        "live": ",".join(str(broker.pk) for broker in brokers),
        "actions": actions[:ACTIONS] if access.may_audit(request.user) else None,
    }
