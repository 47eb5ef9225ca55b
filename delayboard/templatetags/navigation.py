"""The header: pages with their badges, and the broker that pages are shown for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import urlencode

from django import template
from django.db.models import Max
from django.http import HttpRequest
from django.urls import NoReverseMatch, ResolverMatch, get_script_prefix, reverse
from django.utils import timezone

from delayboard.demo.script import TOUR
from delayboard.models import BackgroundTask
from delayboard.now.navigation import PAGES, Badge, Page, count_badges
from topology import access
from topology.models import Broker
from topology.models.read_only import site_reason

register = template.Library()
# Time without a heartbeat after which no worker runs: a busy one beats every few seconds.
SILENT_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class Tab:
    """`current` is the value of aria-current, "" on the pages of other tabs."""

    page: Page
    url: str
    current: str
    badge: Badge | None


@dataclass(frozen=True)
class Header:
    """`broker` is what the page is of, `chosen` what the links of the header keep."""

    tabs: Sequence[Tab]
    broker: Broker | None
    chosen: Broker | None
    brokers: Sequence[Broker]
    switches: Sequence[tuple[Broker, str]]
    all_url: str
    # What a read-only switch is on for, and why; "" without one.
    read_only: str
    read_only_reason: str


@register.simple_tag(takes_context=True)
def read_header(context: template.Context) -> Header:
    """What the header of this page shows."""
    request: HttpRequest = context["request"]
    visible = list(access.visible_brokers(request.user))
    broker: Broker | None = context.get("broker")
    chosen = broker if len(visible) > 1 and _is_chosen(request, broker) else None
    shown = broker or (visible[0] if len(visible) == 1 else None)
    read_only, reason = _read_only([shown] if shown else visible)
    badges = count_badges([chosen] if chosen else visible, timezone.now())
    currents = {page: _current(request, page) for page in PAGES}
    here = next((page for page, current in currents.items() if current), PAGES[0])
    switched = here if here.has_brokers else PAGES[0]
    return Header(
        [
            Tab(page, _address(page, chosen), current, badges.get(page.url_name))
            for page, current in currents.items()
        ],
        shown,
        chosen,
        visible,
        [(one, _address(switched, one)) for one in visible],
        _address(switched, None),
        read_only,
        reason,
    )


def _read_only(brokers: Sequence[Broker]) -> tuple[str, str]:
    """The label of the header and its explanation; two empty texts without a switch."""
    if reason := site_reason():
        return "Read-only", reason
    names = [broker.name for broker in brokers if broker.is_read_only]
    if not names:
        return "", ""
    label = f"{len(names)} brokers" if len(names) > 1 else names[0] if len(brokers) > 1 else ""
    verb = "is" if len(names) == 1 else "are"
    return f"Read-only: {label}" if label else "Read-only", f"{', '.join(names)} {verb} read-only."


@register.simple_tag
def worker_silent_since() -> datetime | None:
    """The last heartbeat of any background task, where it is older than SILENT_AFTER.

    None also where no worker ever ran: then Now says so.
    """
    newest = BackgroundTask.objects.aggregate(at=Max("beat_at"))["at"]
    return newest if newest is not None and timezone.now() - newest > SILENT_AFTER else None


@register.simple_tag(takes_context=True)
def read_tour(context: template.Context) -> dict[str, Any] | None:
    """The step of the tour that the user is on; None for somebody who is not on it."""
    number = context["request"].session.get("tour", 0)
    if not 0 < number <= len(TOUR):
        return None
    return {"number": number, "total": len(TOUR), "step": TOUR[number - 1]}


def _is_chosen(request: HttpRequest, broker: Broker | None) -> bool:
    """Whether the address names the broker, or something of it."""
    if broker is None:
        return False
    match: ResolverMatch | None = request.resolver_match
    return request.GET.get("broker") == broker.slug or bool(match and match.kwargs)


def _address(page: Page, broker: Broker | None) -> str:
    query = f"?{urlencode({'broker': broker.slug})}" if broker and page.has_brokers else ""
    return _homes(page, get_script_prefix())[0] + query


def _current(request: HttpRequest, page: Page) -> str:
    """ "page" on the page itself, "true" below it and on those that belong to it."""
    homes = _homes(page, get_script_prefix())
    if request.path == homes[0]:
        return "page"
    match: ResolverMatch | None = request.resolver_match
    is_other = match is not None and match.view_name in page.others
    is_below = any(request.path.startswith(home) for home in homes if len(home) > 1)
    return "true" if is_other or is_below else ""


@cache
def _homes(page: Page, prefix: str) -> Sequence[str]:
    """The addresses of the page and of those that belong to it, below this prefix of all."""
    return (reverse(page.url_name), *map(_plain, page.others))


def _plain(name: str) -> str:
    """The address of a page; "" for one that needs more than its name."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
