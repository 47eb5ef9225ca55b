"""Search in parked messages: `match` has the fields and the one meaning in the database.

`listing` is a page of matches, `index` writes the search index.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import QuerySet

from analytics.search import find
from analytics.search.query import QueryError, parse
from delayboard.dead_letters.parked.redact_cause import hidden_columns
from delayboard.dead_letters.search.match import FIELDS, Search, search_for
from delayboard.models import ParkedMessage
from topology import access, redaction
from topology.access import User
from topology.models import Broker, Role
from topology.redaction import Redaction

__all__ = ["FIELDS", "QueryError", "Search", "matching", "reveals", "search_by"]


def matching(user: User | None, broker: Broker, text: str) -> QuerySet[ParkedMessage]:
    """All messages that match a query, newest first; `user` None is Delayboard itself.

    Raises QueryError for an invalid query, and for one that this user may not use. Messages that
    are not indexed yet are omitted when the query is about headers, bodies or ids.
    """
    return search_by(user, broker, text).messages()


def search_by(user: User | None, broker: Broker, text: str, now: datetime | None = None) -> Search:
    """The query, understood; its ages count from `now`. Raises QueryError as `matching` does."""
    query = parse(text, now or datetime.now(UTC), FIELDS)
    if user is not None:
        hidden = redaction.rules_for(user, broker)
        if query.reads_content and not access.may(user, broker, Role.OPERATOR):
            raise QueryError(
                "Searching in headers and bodies needs the role operator. You can search other "
                "fields."
            )
        if refusal := find.find_refusal(hidden, query, _hidden_fields(hidden)):
            raise QueryError(refusal)
    return search_for(broker, query)


def reveals(hidden: Redaction, text: str) -> bool:
    """Whether a query that others wrote may itself hold something of what is hidden."""
    return find.reveals(hidden, text, FIELDS, _hidden_fields(hidden))


def _hidden_fields(hidden: Redaction) -> list[str]:
    columns = hidden_columns(hidden)
    return [name for name, field in FIELDS.items() if field.column in columns]
