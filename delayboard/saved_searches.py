"""Searches of lists that users saved under a name: by broker and list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlencode

from django.db import IntegrityError, transaction

from analytics.scheduled.queries.filter import FIELDS, NAMES
from analytics.search.query import QueryError, parse
from analytics.search.rights import reveals
from delayboard.dead_letters import search
from delayboard.models import SavedSearch, SearchedList
from topology import audit, redaction
from topology.access import User
from topology.models import Broker
from topology.redaction import Redaction

LONGEST_NAME = 100
LONGEST_QUERY = 2000
# The parameters of a list without a query language that are its search.
PARAMETERS = {
    SearchedList.SCHEDULED: (*NAMES, "overdue", "stuck", "sort"),
    SearchedList.FINDINGS: ("q", "severity", "sort"),
}


class SavedSearchError(ValueError):
    """Says why nothing was saved or deleted, and what to do."""


def read_query(searched: SearchedList, values: Mapping[str, str]) -> str:
    """What the address of a list searches for, as it is saved; "" for everything."""
    if searched not in PARAMETERS:
        return values.get("q", "").strip()
    named = {name: values.get(name, "").strip() for name in PARAMETERS[searched]}
    return urlencode({name: text for name, text in named.items() if text})


def find_searches(
    user: User, searched: SearchedList, brokers: Collection[Broker]
) -> list[SavedSearch]:
    """Those of a list and these brokers that reveal no redacted values to the user."""
    rows = SavedSearch.objects.filter(searched=searched, broker__in=brokers)
    found = list(rows.select_related("broker"))
    rules = redaction.rules_by_broker(user, brokers) if found else {}
    return [row for row in found if not _reveals(row, rules[row.broker_id])]


def _reveals(row: SavedSearch, hidden: Redaction) -> bool:
    if row.searched == SearchedList.PARKED_MESSAGES:
        return search.reveals(hidden, row.query)
    return any(reveals(hidden, one, FIELDS) for one in parse_qs(row.query).get("text", ()))


def save_search(
    user: User, broker: Broker, searched: SearchedList, name: str, query: str
) -> SavedSearch:
    """Raises SavedSearchError."""
    if not name or len(name) > LONGEST_NAME:
        raise SavedSearchError(f"Enter a name of at most {LONGEST_NAME} characters.")
    if not query:
        raise SavedSearchError("The search is empty. Enter a search first.")
    if len(query) > LONGEST_QUERY:
        raise SavedSearchError("The search is too long. Shorten it.")
    try:
        if searched == SearchedList.PARKED_MESSAGES:
            parse(query, datetime.now(UTC), search.FIELDS)
        with transaction.atomic():
            row = SavedSearch.objects.create(
                broker=broker, searched=searched, name=name, query=query, created_by_id=user.pk
            )
    except QueryError as error:
        raise SavedSearchError(str(error)) from error
    except IntegrityError as error:
        raise SavedSearchError(f"A search “{name}” already exists. Choose another name.") from error
    audit.record(user, "search saved", broker=broker, what=name, details={"query": query})
    return row


def delete_search(user: User, broker: Broker, number: int) -> SavedSearch:
    """Raises SavedSearchError."""
    row = SavedSearch.objects.filter(broker=broker, pk=number).first()
    if row is None:
        raise SavedSearchError("This search is already deleted.")
    row.delete()
    details = {"query": row.query}
    audit.record(user, "search deleted", broker=broker, what=row.name, details=details)
    return row
