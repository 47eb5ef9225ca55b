"""The saved views of a list, on its page."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import template
from django.http import HttpRequest

from delayboard.models import SearchedList
from delayboard.saved_views import find_views, may_delete, read_query, write_display
from delayboard.views.saved_views import BROKER_ONLY, list_url
from topology import access
from topology.models import Role

register = template.Library()


@register.simple_tag(takes_context=True)
def saved_views(
    context: template.Context, searched: str, query: str | None = None
) -> dict[str, Any]:
    """The saved views of a list; its own filter, or `query`, can be saved with order and columns.

    The page has its `broker`, if it is of one, its `columns` and its `sort` in the context.
    """
    request: HttpRequest = context["request"]
    shown, broker = SearchedList(searched), context.get("broker")
    columns: Collection[str] = context.get("columns") or ()
    sort: str = context.get("sort") or ""
    brokers = [broker] if broker else list(access.visible_brokers(request.user))
    broker = brokers[0] if len(brokers) == 1 else None
    typed = read_query(shown, request.GET.dict()) if query is None else query
    display = write_display(shown, columns, sort)
    rows = find_views(request.user, shown, brokers)
    return {
        "searched": shown,
        "rows": [
            (
                row,
                list_url(shown, row.broker, row.query, row.display),
                row.query == typed and row.display in ("", display),
            )
            for row in rows
        ],
        "deletable": [row for row in rows if may_delete(request.user, row)],
        "shows_brokers": broker is None,
        "typed": typed,
        "sort": sort,
        "columns": ",".join(columns),
        "broker": broker,
        "may_save": broker is not None or shown not in BROKER_ONLY,
        "may_share": broker is not None and access.may(request.user, broker, Role.OPERATOR),
    }
