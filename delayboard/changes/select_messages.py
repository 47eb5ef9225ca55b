"""Which messages come into an intercept queue: the changed ones where a header has their id, else
those with their routing keys where these differ by delay, else all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import orjson
from django.db.models import QuerySet
from django.utils import timezone

from analytics.models import ScheduledMessage
from delayboard.models import Interception, ScheduledChange
from delayboard.models.scheduled_change import OPEN
from topology.definitions import Binding
from topology.transfer.interception import Interception as Intercepted

# A headers exchange compares each message with all of its bindings, and each takes a request before
# the first message is due.
MOST_IDS = MOST_KEYS = 100
# Names and values; empty for a message without any.
IdHeaders: TypeAlias = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Selector:
    """How RabbitMQ can tell a message from others of its queue: by `headers`, which no other has,
    or by a `routing_key`, which those of the same delay have too. "" where all have the same.
    """

    headers: IdHeaders
    routing_key: str


@dataclass(frozen=True)
class Selection:
    """What is led into an intercept queue. It only grows: a message that passes by would overtake
    those that wait in the queue.
    """

    headers: frozenset[IdHeaders] = frozenset()
    keys: frozenset[str] = frozenset()
    is_all: bool = False

    def adding(self, selectors: Iterable[Selector]) -> Selection:
        """As few other messages as possible with them."""
        headers, keys = set(self.headers), set(self.keys)
        for one in selectors:
            if one.headers in headers or one.routing_key in keys:
                continue
            if one.headers and len(headers) < MOST_IDS:
                headers.add(one.headers)
            elif one.routing_key and len(keys) < MOST_KEYS:
                keys.add(one.routing_key)
            else:
                return ALL
        return self if self.is_all else Selection(frozenset(headers), frozenset(keys))

    def bindings(self, intercepted: Intercepted) -> list[Binding]:
        if self.is_all:
            return [intercepted.taking_all]
        with_ids = [intercepted.taking_headers(dict(one)) for one in self.headers]
        return with_ids + [intercepted.taking_key(key) for key in sorted(self.keys)]


ALL = Selection(is_all=True)


def selector_of(row: ScheduledMessage) -> Selector:
    return Selector(frozenset(id_headers(row).items()), key_of_delay(row))


def key_of_delay(row: ScheduledMessage) -> str:
    """The routing key with which a message leaves its delay; "" where those of others are alike."""
    is_known = row.topology is not None and row.topology.pattern.KEYS_DIFFER_BY_DELAY
    return row.routing_key if is_known and _is_plain(row.routing_key) else ""


def selectors_of(changes: QuerySet[ScheduledChange]) -> Iterable[Selector]:
    for stated, key in changes.values_list("id_headers", "routing_key"):
        yield Selector(frozenset(stated.items()), key)


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
        if value
        and headers.get(name) == value
        and _is_plain(name + value)
        and not name.startswith("x-")
    }


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class SelectedMessages:
    """What is led into the queue of one interception in this session."""

    def __init__(self, row: Interception) -> None:
        self._row = row
        self._selection = Selection()

    def missing(self, *, is_for_all: bool = False) -> list[Binding]:
        """Bindings to be declared for the changes that are due while messages may wait, should the
        worker stop; with `is_for_all` for every message. None twice.
        """
        until = timezone.now() + self._row.limit
        changes = self._row.changes.filter(state__in=OPEN, due_at__lte=until)
        before = self._selection
        self._selection = ALL if is_for_all else before.adding(selectors_of(changes))
        if self._selection == before:
            return []
        intercepted = self._row.objects_of_broker
        there = set(before.bindings(intercepted))
        return [one for one in self._selection.bindings(intercepted) if one not in there]
