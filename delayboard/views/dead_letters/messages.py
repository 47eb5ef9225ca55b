"""Parked messages, searched and filtered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from delayboard.dead_letters.parked.groups import by_state
from delayboard.dead_letters.search import QueryError, rights, search_by
from delayboard.dead_letters.search.listing import list_page
from delayboard.dead_letters.search.query import FIELDS, LONGEST, parse
from delayboard.models import ParkedState, SavedSearch
from topology import access, audit, redaction
from topology.database import paging
from topology.models import Broker, Role

LONGEST_NAME = 100


@require_safe
@access.with_broker(Role.VIEWER)
def parked_messages(request: HttpRequest, broker: Broker) -> HttpResponse:
    """A page of what the query in the address means; who may read sees how bodies begin."""
    typed = query_of(request)
    before = paging.row_number(request.GET.get("before", ""))
    context: dict[str, Any] = {
        "broker": broker,
        "typed": typed,
        "fields": FIELDS,
        "longest": LONGEST,
        "before": before,
        "searches": _searches(request, broker),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        "may_admin": access.may(request.user, broker, Role.ADMIN),
    }
    try:
        search = search_by(request.user, broker, typed)
    except QueryError as error:
        return render(request, "delayboard/parked_messages.html", context | {"problem": str(error)})
    shown = list_page(request.user, search, before)
    if shown.lines and shown.has_content:
        details = {"parked_messages": len(shown.lines), "newest": shown.lines[0].row.pk}
        if not audit.try_record(
            request.user, "parked messages listed", broker=broker, what=typed, details=details
        ):
            messages.warning(request, audit.NOT_WRITTEN)
    context |= {
        "listed": shown,
        "states": search.states,
        "query": search.query,
        "by_state": by_state(broker),
    }
    return render(request, "delayboard/parked_messages.html", context)


def _searches(request: HttpRequest, broker: Broker) -> list[SavedSearch]:
    """Saved searches that reveal no redacted values to this user."""
    hidden = redaction.rules_for(request.user, broker)
    rows = SavedSearch.objects.filter(broker=broker)
    return [row for row in rows if not rights.tells(hidden, row.query)]


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


@require_POST
@access.with_broker(Role.OPERATOR)
def parked_message_searches(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Keep a query under a name, or forget one."""
    back = reverse("parked_messages", args=[broker.slug])
    number = paging.row_number(request.POST.get("forget", ""))
    if number is not None:
        _forget(request, broker, number)
    else:
        back += "?" + urlencode({"q": _keep(request, broker)})
    return redirect(back)


def _keep(request: HttpRequest, broker: Broker) -> str:
    name = clean(request.POST.get("name", "")).strip()
    query = clean(request.POST.get("q", "")).strip()
    try:
        if not name or len(name) > LONGEST_NAME:
            raise QueryError(f"Enter a name of at most {LONGEST_NAME} characters.")
        if not query:
            raise QueryError("The search is empty. Enter a search first.")
        parse(query, datetime.now(UTC))
        with transaction.atomic():
            SavedSearch.objects.create(
                broker=broker, name=name, query=query, created_by_id=request.user.pk
            )
    except QueryError as error:
        messages.error(request, f"Nothing was saved. {error}")
    except IntegrityError:
        messages.error(request, f"Nothing was saved. A search “{name}” already exists.")
    else:
        audit.record(
            request.user, "search saved", broker=broker, what=name, details={"query": query}
        )
        messages.success(request, f"The search “{name}” is saved.")
    return query


def _forget(request: HttpRequest, broker: Broker, number: int) -> None:
    row = SavedSearch.objects.filter(broker=broker, pk=number).first()
    if row is None:
        messages.error(request, "This search is already deleted.")
        return
    row.delete()
    details = {"query": row.query}
    audit.record(request.user, "search deleted", broker=broker, what=row.name, details=details)
    messages.success(request, f"The search “{row.name}” is deleted.")
