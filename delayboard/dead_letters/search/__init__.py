"""Searching the journal: a query's text -> the letters that it means."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import QuerySet

from delayboard.dead_letters.search import rights
from delayboard.dead_letters.search.asked import Asked, ask
from delayboard.dead_letters.search.query import QueryError, parse
from delayboard.dead_letters.search.whole import whole
from delayboard.models import DeadLetter
from topology.access import User
from topology.models import Broker

__all__ = ["Asked", "QueryError", "asked_by", "matching"]


def matching(user: User | None, broker: Broker, query: str) -> QuerySet[DeadLetter]:
    """All letters that a query means, the newest first; `user` None is Delayboard itself.

    Raises QueryError for what is no query, or what this person may not ask. Letters that are not
    indexed yet are left out where it asks about headers, bodies or ids.
    """
    return whole(asked_by(user, broker, query))


def asked_by(user: User | None, broker: Broker, query: str) -> Asked:
    """The query, understood. Raises QueryError as `matching` does."""
    parsed = parse(query, datetime.now(UTC))
    if user is not None:
        rights.check(user, broker, parsed)
    return ask(broker, parsed)
