"""The first page: what is going on, and what needs somebody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from delayboard.models import Acknowledgement
from delayboard.now.acknowledge import SNOOZES, withdraw
from delayboard.now.acknowledge import acknowledge as set_problem
from delayboard.now.board import BROKER_AGE, SHARED_AGE, VIEWS, Overview, overview, shared_overview
from topology import access
from topology.delays import format_span
from topology.models import Role
from topology.views.audit import readable_entries
from topology.views.redirect_back import next_of

ACTIONS = 6
# All that a refreshed page depends on -> when it was rendered, and its text: all open pages fetch
# at once.
_refreshed: dict[tuple[object, ...], tuple[datetime, str]] = {}


@require_safe
def now(request: HttpRequest) -> HttpResponse:
    """The page Now of all brokers that the user may see, or of the chosen one."""
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


@require_POST
def acknowledge(request: HttpRequest) -> HttpResponse:
    """Acknowledge the problem in the address, snooze it for the posted hours, or withdraw that."""
    back = redirect(next_of(request, "/"))
    visible = {broker.pk: broker for broker in access.visible_brokers(request.user)}
    identity, hours = request.GET.get("problem", ""), request.POST.get("for", "")
    if hours == "end":
        row = Acknowledgement.objects.filter(identity=identity).select_related("broker").first()
        if row is not None:
            access.require(request.user, row.broker, Role.OPERATOR)
            withdraw(request.user, row)
            messages.success(request, "The problem is reported again.")
        return back
    now = datetime.now(UTC)
    # Without the sums of problems that are not named.
    found = overview(list(visible.values()), now, BROKER_AGE, named=None)
    problems = (*found.open_problems, *(one for one, _ in found.acknowledged))
    problem = next((one for one in problems if one.identity == identity), None)
    if problem is None:
        messages.error(request, "Not acknowledged: the problem is already resolved.")
        return back
    if hours not in ("", *SNOOZES):
        messages.error(request, "Not snoozed: select one of the times.")
        return back
    broker = visible[problem.broker] if problem.broker is not None else None
    access.require(request.user, broker, Role.OPERATOR)
    until_at = now + SNOOZES[hours] if hours else None
    set_problem(request.user, problem, broker, until_at)
    until = "until the problem ends"
    if until_at:
        until = f"until {timezone.localtime(until_at):%Y-%m-%d %H:%M %Z}"
    messages.success(request, f"Acknowledged {until}. No alert reports it in this time.")
    return back


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
    roles = access.roles_for(request.user, brokers)
    operated: set[int | None] = {pk for pk, role in roles.items() if (role or 0) >= Role.OPERATOR}
    if access.may(request.user, None, Role.OPERATOR):
        operated.add(None)
    actions = readable_entries(request.user).filter(broker__in=brokers).exclude(action__in=VIEWS)
    return {
        "overview": shown,
        "at": shown.at,
        "broker": choice.chosen,
        "brokers": choice.visible,
        "operated": operated,
        "snoozes": [(hours, format_span(span)) for hours, span in SNOOZES.items()],
        "live": ",".join(str(broker.pk) for broker in brokers),
        "actions": actions[:ACTIONS] if access.may_audit(request.user) else None,
    }
