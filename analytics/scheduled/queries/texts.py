"""The texts that a search goes through: added after the messages, and only of those that wait.

So a flood of short delays, each of which is over before its turn comes, never pays for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Substr

from analytics.models import ScheduledMessage, ScheduledText, TextPosition
from analytics.models.scheduled_message import WAITING
from analytics.observation import is_presumed_delivered
from analytics.search import content
from analytics.search.query import FieldValue
from topology.database.errors import try_write

# Time for which a message must wait to be indexed, if no search asks for it.
SETTLED_AFTER = timedelta(seconds=10)
# Time after the due time until a text is checked: the recorder may be a little behind.
CHECKED_AFTER = timedelta(seconds=10)
# Time after which a message that did not leave is checked again.
CHECKED_AGAIN_AFTER = timedelta(minutes=5)
# Messages of one step, which holds SQLite's one write lock for about 50 ms.
STEP = 500
PASSED_PER_STEP = 5000
SECONDS_PER_CALL = 0.25
# Messages that a search indexes itself when it comes before the worker.
NEWEST = 300
COUNTED = 10_000


def keep_up() -> int:
    """Index what has begun to wait, forget what has left; how many texts that were.

    Works for a quarter of a second at most; 0 means that there is nothing to do now.
    """
    until = time.monotonic() + SECONDS_PER_CALL
    done = 0
    while time.monotonic() < until:
        now = datetime.now(UTC)
        added, are_more = _add(now) if _has_settled(now) else (0, False)
        is_due = ScheduledText.objects.filter(check_at__lte=now).exists()
        removed, are_more_settled = _remove(now) if is_due else (0, False)
        done += added + removed
        if not are_more and not are_more_settled:
            break
    return done


def _has_settled(now: datetime) -> bool:
    """Whether a row can be skipped; read without SQLite's write lock, which others need."""
    rows = ScheduledMessage.objects.filter(pk__gt=read_to()).order_by("pk")
    first = rows.values_list("entered_at", "left_at").first()
    if first is None:
        return False
    entered_at, left_at = first
    return entered_at is None or left_at is not None or entered_at <= now - SETTLED_AFTER


def read_to() -> int:
    """The messages up to this id have their texts, as far as they wait."""
    return TextPosition.objects.values_list("read_to", flat=True).first() or 0


def not_searchable(rows: QuerySet[ScheduledMessage]) -> int:
    """How many of the waiting rows are not indexed yet; COUNTED at most."""
    young = rows.filter(pk__gt=read_to(), searched=None).order_by()
    return young.values("pk")[:COUNTED].count()


def add_newest() -> None:
    """Index the newest that are not yet, for a search that is about to read the index."""
    rows = ScheduledMessage.objects.filter(WAITING, pk__gt=read_to(), searched=None)
    if ids := list(rows.order_by("-pk").values_list("pk", flat=True)[:NEWEST]):
        try_write("The index of waiting messages", lambda: _write(ids, datetime.now(UTC)))


def texts_of(ids: Collection[int]) -> dict[int, str]:
    """What is searched of these messages, from their own rows."""
    return {
        pk: content.read_text(stated, headers, body, content.read_json(body))
        for pk, stated, headers, body in _read(ids, 4 * content.BODY_CHARACTERS)
    }


def values_of(ids: Collection[int]) -> dict[int, tuple[FieldValue, ...]]:
    """The values by name of their headers and kept bodies."""
    return {
        pk: content.read_values(headers, content.read_json(body))
        for pk, _, headers, body in _read(ids, content.JSON_BYTES + 1)
    }


def _read(
    ids: Collection[int], most: int
) -> Iterator[tuple[int, tuple[str, str], dict[str, Any], bytes]]:
    """The number, ids and headers of each, and the first bytes of a kept body."""
    rows = (
        ScheduledMessage.objects.filter(pk__in=ids)
        .order_by()
        .values_list(
            "pk", "message_id", "correlation_id", "headers_json", Substr("kept_body__body", 1, most)
        )
    )
    for pk, message_id, correlation_id, headers, body in rows:
        yield pk, (message_id, correlation_id), orjson.loads(headers), bytes(body or b"")


def _select_waiting(ids: Collection[int], now: datetime) -> dict[int, datetime]:
    """The messages of these that still wait, each with its due time."""
    rows = ScheduledMessage.objects.filter(WAITING, pk__in=ids).exclude(is_presumed_delivered(now))
    return {pk: due_at for pk, due_at in rows.values_list("pk", "due_at") if due_at is not None}


def _write(ids: Collection[int], now: datetime) -> int:
    """Index those that still wait; how many."""
    waits = _select_waiting(ids, now)
    texts = (
        ScheduledText(message_id=pk, text=text, check_at=waits[pk] + CHECKED_AFTER)
        for pk, text in texts_of(waits).items()
    )
    return len(ScheduledText.objects.bulk_create(texts, ignore_conflicts=True))


@transaction.atomic
def _add(now: datetime) -> tuple[int, bool]:
    """How many texts were added, and whether there is more to do at once."""
    position, _ = TextPosition.objects.select_for_update().get_or_create(pk=1)
    rows = ScheduledMessage.objects.filter(pk__gt=position.read_to).order_by("pk")
    begun: list[int] = []
    passed = position.read_to
    seen = rows.values_list("pk", "entered_at", "left_at")[:PASSED_PER_STEP]
    for pk, entered_at, left_at in seen:
        if len(begun) == STEP:
            break
        if entered_at is not None and left_at is None:
            if entered_at > now - SETTLED_AFTER:
                break
            begun.append(pk)
        passed = pk
    if passed == position.read_to:
        return 0, False
    added = _write(begun, now)
    position.read_to = passed
    position.save()
    return added, len(begun) == STEP or len(seen) == PASSED_PER_STEP


@transaction.atomic
def _remove(now: datetime) -> tuple[int, bool]:
    """How many texts of messages that have left were removed, and whether there is more."""
    rows = ScheduledText.objects.filter(check_at__lte=now).order_by("check_at")
    ids = set(rows.values_list("pk", flat=True)[:STEP])
    late = _select_waiting(ids, now).keys()
    ScheduledText.objects.filter(pk__in=ids - late).delete()
    ScheduledText.objects.filter(pk__in=late).update(check_at=now + CHECKED_AGAIN_AFTER)
    return len(ids - late), len(ids) == STEP
