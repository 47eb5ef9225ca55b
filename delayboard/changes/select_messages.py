"""Which messages come into an intercept queue: the changed ones where a header has their id."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import orjson
from django.utils import timezone

from analytics.models import ScheduledMessage
from delayboard.models import Interception
from delayboard.models.scheduled_change import OPEN
from topology.definitions import Binding

# A headers exchange compares each message with all of its bindings.
MOST = 100
# Names and values; empty for a message without any.
IdHeaders: TypeAlias = frozenset[tuple[str, str]]


def id_headers(row: ScheduledMessage) -> dict[str, str]:
    """The headers that have the id of a message, as NServiceBus and others set one, or Celery's.

    None that begins with `x-`, which bindings ignore (rabbit_exchange_type_headers, 3.10.8 to
    4.3.6). What is not printable ASCII may have been stored as another text. All of them, since one
    alone may be that of a conversation, which other messages have too.
    """
    headers = orjson.loads(row.headers_json)
    # Celery sets no message id: the id of a task is its correlation id.
    names = headers if row.message_id else ("id",)
    value = row.message_id or row.correlation_id
    return {
        name: value
        for name in names
        if value and headers.get(name) == value and _is_plain(name + value)
    }


def distinct(stated: Iterable[Mapping[str, str]]) -> set[IdHeaders]:
    """The headers of several messages, each once."""
    return {frozenset(one.items()) for one in stated}


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not text.startswith("x-")


def are_selected(ids: Collection[IdHeaders]) -> bool:
    """Whether only these messages are intercepted; else all of their queue are."""
    return len(set(ids)) <= MOST and all(ids)


def bindings_for(row: Interception, ids: Collection[IdHeaders]) -> list[Binding]:
    """What leads these messages into the intercept queue, or every message."""
    taking = row.objects_of_broker.taking
    return [taking(dict(one)) for one in ids] if are_selected(ids) else [taking({})]


class Selection:
    """The bindings that lead what an interception takes to its queue. It only grows: a message that
    passes by would overtake those that wait in the queue.
    """

    def __init__(self, row: Interception) -> None:
        self._row = row
        self._ids: set[IdHeaders] = set()
        self._takes_all = False

    def missing(self, *, is_for_all: bool = False) -> list[Binding]:
        """Those to be declared for the changes that are due while messages may wait, should the
        worker stop; with `is_for_all` for every message. None twice.
        """
        until = timezone.now() + self._row.limit
        changes = self._row.changes.filter(state__in=OPEN, due_at__lte=until)
        new = distinct(changes.values_list("id_headers", flat=True)) - self._ids
        if self._takes_all or not (new or is_for_all):
            return []
        self._ids |= new
        self._takes_all = is_for_all or not are_selected(self._ids)
        return bindings_for(self._row, [frozenset()] if self._takes_all else new)
