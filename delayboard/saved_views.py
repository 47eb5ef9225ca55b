"""Views of lists that people saved under a name: filter, order and columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlencode

from django.db import IntegrityError, transaction
from django.db.models import Q

from analytics.scheduled.queries.listing import FIELDS, NAMES
from analytics.search.find import reveals
from analytics.search.query import QueryError, parse
from delayboard.columns import COLUMNS, choose_known
from delayboard.dead_letters import search
from delayboard.models import SavedView, SearchedList
from topology import access, audit, redaction
from topology.access import User
from topology.models import Broker, Role
from topology.redaction import NOTHING, Redaction

LONGEST_NAME = 100
LONGEST_QUERY = 2000
# List without a query language -> the parameters that are its filter and order.
PARAMETERS = {
    SearchedList.SCHEDULED: (*NAMES, "overdue", "stuck", "sort"),
    SearchedList.FINDINGS: ("q", "severity", "sort"),
    SearchedList.RETRYING: ("topology", "destination", "text"),
    SearchedList.DEAD_LETTERS: ("q", "sort", "empty"),
    SearchedList.REPLAYS: ("open", "sort"),
}


class SavedViewError(ValueError):
    """Says why nothing was saved or deleted, and what to do."""


def read_query(searched: SearchedList, values: Mapping[str, str]) -> str:
    """What the address of a list filters by, as it is saved; "" for everything."""
    if searched not in PARAMETERS:
        return values.get("q", "").strip()
    named = {name: values.get(name, "").strip() for name in PARAMETERS[searched]}
    return urlencode({name: text for name, text in named.items() if text})


def write_display(searched: SearchedList, columns: Collection[str], sort: str = "") -> str:
    """The columns of a list and, where its query cannot have it, the order, as they are saved."""
    parts = {"columns": ",".join(choose_known(searched, columns))} if searched in COLUMNS else {}
    if searched == SearchedList.PARKED_MESSAGES and sort == "parked":
        parts["sort"] = sort
    return urlencode(parts)


def find_views(user: User, searched: SearchedList, brokers: Collection[Broker]) -> list[SavedView]:
    """The user's own, and those shared on these brokers; none that reveals redacted values."""
    own_or_shared = Q(owner=user.pk) | Q(owner=None)
    of_brokers = Q(broker__in=brokers) | Q(broker=None)
    rows = SavedView.objects.filter(own_or_shared, of_brokers, searched=searched)
    found = list(rows.select_related("broker"))
    rules = redaction.rules_by_broker(user, brokers) if found else {}
    return [
        row
        for row in found
        if row.owner_id or not _reveals(row, rules.get(row.broker_id or 0, NOTHING))
    ]


def _reveals(row: SavedView, hidden: Redaction) -> bool:
    if row.searched == SearchedList.PARKED_MESSAGES:
        return search.reveals(hidden, row.query)
    values = parse_qs(row.query)
    if row.searched == SearchedList.DEAD_LETTERS:
        return "q" in values and not hidden.is_empty
    return any(reveals(hidden, one, FIELDS) for one in values.get("text", ()))


def save_view(
    user: User,
    searched: SearchedList,
    broker: Broker | None,
    name: str,
    query: str,
    display: str,
    *,
    is_shared: bool,
) -> SavedView:
    """Raises SavedViewError."""
    if not name or len(name) > LONGEST_NAME:
        raise SavedViewError(f"Enter a name of at most {LONGEST_NAME} characters.")
    if len(query) > LONGEST_QUERY:
        raise SavedViewError("The filter is too long. Shorten it.")
    if is_shared and (broker is None or not access.may(user, broker, Role.OPERATOR)):
        raise SavedViewError(
            "Only an operator of a broker can share its views. Save it for yourself, or ask an "
            "operator."
        )
    try:
        if searched == SearchedList.PARKED_MESSAGES:
            parse(query, datetime.now(UTC), search.FIELDS)
        with transaction.atomic():
            row = SavedView.objects.create(
                searched=searched,
                broker=broker,
                owner_id=None if is_shared else user.pk,
                name=name,
                query=query,
                display=display,
                created_by_id=user.pk,
            )
    except QueryError as error:
        raise SavedViewError(str(error)) from error
    except IntegrityError as error:
        raise SavedViewError(f"A view “{name}” already exists. Choose another name.") from error
    if is_shared:
        audit.record(user, "view shared", broker=broker, what=name, details={"query": query})
    return row


def delete_view(user: User, number: int) -> SavedView:
    """Delete one's own view, or as an operator a shared one. Raises SavedViewError."""
    row = SavedView.objects.select_related("broker").filter(pk=number).first()
    if row is None or not may_delete(user, row):
        raise SavedViewError("This view is already deleted, or you may not delete it.")
    row.delete()
    if row.owner_id is None:
        details = {"query": row.query}
        audit.record(user, "shared view deleted", broker=row.broker, what=row.name, details=details)
    return row


def may_delete(user: User, row: SavedView) -> bool:
    if row.owner_id is not None:
        return bool(row.owner_id == user.pk)
    return access.may(user, row.broker, Role.OPERATOR)
