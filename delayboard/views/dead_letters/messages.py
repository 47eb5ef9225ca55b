"""Parked messages, searched and filtered."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from analytics.events import clean
from delayboard.dead_letters.parked.groups import by_state
from delayboard.dead_letters.search import QueryError, search_by
from delayboard.dead_letters.search.listing import list_page
from delayboard.dead_letters.search.query import FIELDS, LONGEST, Compared, Condition, Query
from delayboard.models import MessageGroup, ParkedState
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
        "fields": FIELDS,
        "longest": LONGEST,
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        "may_admin": access.may(request.user, broker, Role.ADMIN),
    }
    try:
        search = search_by(request.user, broker, typed)
    except QueryError as error:
        return render(request, "delayboard/parked_messages.html", context | {"problem": str(error)})
    sort = read_sort(request, ("parked",), "-parked") if search.is_of_series else "-parked"
    is_oldest_first = sort == "parked"
    edge = paging.row_number(request.GET.get("after" if is_oldest_first else "before", ""))
    shown = list_page(request.user, search, edge, is_oldest_first=is_oldest_first)
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
        "edge": edge,
        "sort": sort,
        "is_oldest_first": is_oldest_first,
        "states": search.states,
        "group": _find_group(broker, search.query),
        "query": search.query,
        "by_state": by_state(broker),
    }
    return render(request, "delayboard/parked_messages.html", context)


def _find_group(broker: Broker, query: Query) -> int | None:
    """The group that the query names, if the broker has it."""
    for condition in query.conditions:
        match condition:
            case Condition("group", Compared(None, number), False) if number.is_integer():
                named = MessageGroup.objects.filter(broker=broker, pk=int(number))
                return named.values_list("pk", flat=True).first()
    return None


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
