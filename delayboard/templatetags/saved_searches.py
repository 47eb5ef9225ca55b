"""The saved searches of a list, on its page."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest

from delayboard.models import SearchedList
from delayboard.saved_searches import find_searches, read_query
from delayboard.views.saved_searches import list_url
from topology import access
from topology.models import Role

register = template.Library()


@register.inclusion_tag("delayboard/_saved_searches.html", takes_context=True)
def saved_searches(
    context: template.Context, searched: str, query: str | None = None
) -> dict[str, Any]:
    """The saved searches of a list; its own search, or `query`, can be saved for its broker."""
    request: HttpRequest = context["request"]
    shown, broker = SearchedList(searched), context.get("broker")
    brokers = [broker] if broker else list(access.visible_brokers(request.user))
    typed = read_query(shown, request.GET.dict()) if query is None else query
    rows = find_searches(request.user, shown, brokers)
    only = brokers[0] if len(brokers) == 1 else None
    return {
        "searched": shown,
        "searches": [(row, list_url(row.broker, shown, row.query)) for row in rows],
        "typed": typed,
        "owner": only if only and access.may(request.user, only, Role.OPERATOR) else None,
    }
