"""Parked messages, searched and filtered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from analytics.events import clean
from analytics.search.query import LONGEST, Range
from delayboard.dead_letters.parked.groups import by_state
from delayboard.dead_letters.search import QueryError, Search, search_by
from delayboard.dead_letters.search.listing import list_page
from delayboard.models import ParkedMessage, ParkedState
from topology import access, audit
from topology.database import paging
from topology.models import Broker, Role
from topology.views.sorting import read_sort


@require_safe
@access.with_broker(Role.VIEWER)
def parked_messages(request: HttpRequest, broker: Broker) -> HttpResponse:
    """A page of what the query in the address means; who may read sees how bodies begin."""
    typed = query_of(request)
    context: dict[str, Any] = {
        "broker": broker,
        "typed": typed,
        "longest": LONGEST,
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        "may_admin": access.may(request.user, broker, Role.ADMIN),
    }
    try:
        search = search_by(request.user, broker, typed)
    except QueryError as error:
        return render(request, "delayboard/parked_messages.html", context | {"problem": str(error)})
    # Of what is read message by message, only one order has an index.
    sort = "-parked" if search.reads_messages else read_sort(request, ("parked",), "-parked")
    edge = paging.row_number(request.GET.get("after", ""))
    newest = paging.newest_number(ParkedMessage.objects.all())
    search = replace(search, is_oldest_first=sort == "parked")
    shown = list_page(request.user, search, edge)
    if shown.lines and shown.has_content:
        details = {
            "parked_messages": len(shown.lines),
            "newest": max(line.row.pk for line in shown.lines),
        }
        if not audit.try_record(
            request.user, "parked messages listed", broker=broker, what=typed, details=details
        ):
            messages.warning(request, audit.NOT_WRITTEN)
    context |= {
        "listed": shown,
        "after": edge,
        "newest": newest,
        "sort": sort,
        "can_sort": not search.reads_messages,
        "is_oldest_first": search.is_oldest_first,
        "states": search.states,
        "group": _find_group(search),
        "query": search.query,
        "by_state": by_state(broker),
    }
    return render(request, "delayboard/parked_messages.html", context)


def _find_group(search: Search) -> int | None:
    """The one group that the query names by its number, if the broker has it."""
    ranges = [one.value for one in search.query.conditions if one.field == "group"]
    named = [
        pk
        for pk in search.groups or ()
        if any(isinstance(one, Range) and one.has(pk) for one in ranges)
    ]
    return named[0] if len(named) == 1 else None


def query_of(request: HttpRequest) -> str:
    """The query of an address; `group` and `state` may be beside it."""
    values = request.GET
    parts = [clean(values.get("q", "")).strip()]
    group = paging.row_number(values.get("group", ""))
    if group is not None:
        parts.append(f"group:{group}")
    if values.get("state", "") in ParkedState.values:
        parts.append(f"state:{values['state']}")
    return " ".join(part for part in parts if part)
