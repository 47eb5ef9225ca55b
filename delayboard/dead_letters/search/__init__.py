"""Search in parked messages: `query` reads the text, `match` has its one meaning in the database.

`listing` is a page of matches, `index` writes the search index, `rights` checks permissions.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import QuerySet

from delayboard.dead_letters.search import rights
from delayboard.dead_letters.search.match import Search, search_for
from delayboard.dead_letters.search.query import QueryError, parse
from delayboard.models import ParkedMessage
from topology.access import User
from topology.models import Broker

__all__ = ["QueryError", "Search", "matching", "search_by"]


def matching(user: User | None, broker: Broker, text: str) -> QuerySet[ParkedMessage]:
    """All messages that match a query, newest first; `user` None is Delayboard itself.

    Raises QueryError for an invalid query, and for one that this user may not use. Messages that
    are not indexed yet are omitted when the query is about headers, bodies or ids.
    """
    return search_by(user, broker, text).messages()


def search_by(user: User | None, broker: Broker, text: str, now: datetime | None = None) -> Search:
    """The query, understood; its ages count from `now`. Raises QueryError as `matching` does."""
    query = parse(text, now or datetime.now(UTC))
    if user is not None:
        rights.check(user, broker, query)
    return search_for(broker, query)
