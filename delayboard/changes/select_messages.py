"""Which messages come into an intercept queue: the changed ones where a header has their id."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import orjson
from django.utils import timezone

from analytics.models import ScheduledMessage
from delayboard.changes.limits import LEAD
from delayboard.models import Interception
from delayboard.models.scheduled_change import OPEN
from topology.definitions import Binding

# A headers exchange compares each message with all of its bindings.
MOST = 100
# The name and the value of a header; empty for a message without one.
IdHeader: TypeAlias = tuple[str, ...]


def id_header(row: ScheduledMessage) -> IdHeader:
    """The header that has the id of a message as NServiceBus and others set it, or Celery's `id`.

    Not one that begins with `x-`, which bindings ignore (rabbit_exchange_type_headers, 3.10.8 to
    4.3.6). What is not printable ASCII may have been stored as another text.
    """
    headers = orjson.loads(row.headers_json)
    # Celery sets no message id: the id of a task is its correlation id.
    names = headers if row.message_id else ("id",)
    value = row.message_id or row.correlation_id
    for name in names:
        if value and headers.get(name) == value and _is_plain(name + value):
            return name, value
    return ()


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not text.startswith("x-")


def are_selected(ids: Collection[IdHeader]) -> bool:
    """Whether only these messages are intercepted; else all of their queue are."""
    return len(set(ids)) <= MOST and all(ids)


class Selection:
    """The bindings that lead what an interception takes to its queue. It only grows: a message that
    passes by would overtake those that wait in the queue.
    """

    def __init__(self, row: Interception) -> None:
        self._row = row
        self._objects = row.objects_of_broker
        self._ids: set[IdHeader] = set()
        self._takes_all = False

    def missing(self, *, is_for_all: bool = False) -> list[Binding]:
        """Those to be declared for the changes that are due soon, or with `is_for_all` for every
        message; none twice.
        """
        until = timezone.now() + 2 * LEAD
        changes = self._row.changes.filter(state__in=OPEN, due_at__lte=until)
        new = {tuple(one) for one in changes.values_list("id_header", flat=True)} - self._ids
        if self._takes_all or not (new or is_for_all):
            return []
        self._ids |= new
        if is_for_all or not are_selected(self._ids):
            self._takes_all = True
            return [self._objects.taking({})]
        return [self._objects.taking({name: value}) for name, value in new]
