"""The texts that a search goes through: added after the messages, and only of those that wait.

So a flood of short delays, each of which is over before its turn comes, never pays for it.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models.functions import Substr

from analytics.models import ScheduledMessage, ScheduledText, TextPosition
from analytics.observation import is_stuck, stuck_ranges, unobserved
from topology.content.text import fold

# A message that waits for less is never indexed.
SETTLED_AFTER = timedelta(seconds=10)
# Time after the due time until a text is checked: the recorder may be a little behind.
CHECKED_AFTER = timedelta(seconds=10)
# What did not leave is looked at again every minute, later every ten.
LONG = timedelta(minutes=10)
BODY_CHARACTERS = 4096
# A step holds SQLite's one write lock, for about 50 ms.
STEP = 500
PASSED_PER_STEP = 5000
SECONDS_PER_CALL = 0.25


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


def texts_of(ids: Collection[int]) -> dict[int, str]:
    """What is searched of these messages, from their own rows."""
    rows = ScheduledMessage.objects.filter(pk__in=ids).values_list(
        "pk",
        "message_id",
        "correlation_id",
        "headers_json",
        Substr("kept_body__body", 1, 4 * BODY_CHARACTERS),
    )
    return {
        pk: fold("\n".join((message_id, correlation_id, headers, _unescaped(headers), _read(body))))
        for pk, message_id, correlation_id, headers, body in rows
    }


def _unescaped(headers: str) -> str:
    """Names and values as they are, where the JSON has them otherwise: backslashes, quotes."""
    return "\n".join(_texts(orjson.loads(headers))) if "\\" in headers else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _read(body: bytes | None) -> str:
    """The beginning of a body that is text; "" of any other."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(bytes(body or b""))
    except UnicodeDecodeError:
        return ""
    return text[:BODY_CHARACTERS]


@transaction.atomic
def _add(now: datetime) -> tuple[int, bool]:
    """How many texts were added, and whether there is more to do at once."""
    position, _ = TextPosition.objects.select_for_update().get_or_create(pk=1)
    rows = ScheduledMessage.objects.filter(pk__gt=position.read_to).order_by("pk")
    columns = ("pk", "topology", "entered_at", "left_at", "due_at")
    not_observed = _not_observed()
    waits: dict[int, datetime] = {}
    passed = position.read_to
    seen = rows.values_list(*columns)[:PASSED_PER_STEP]
    for pk, topology, entered_at, left_at, due_at in seen:
        if len(waits) == STEP:
            break
        if entered_at is not None and left_at is None and due_at is not None:
            if entered_at > now - SETTLED_AFTER:
                break
            if not (topology in not_observed and due_at < now):
                waits[pk] = due_at
        passed = pk
    if passed == position.read_to:
        return 0, False
    ScheduledText.objects.bulk_create(
        ScheduledText(message_id=pk, text=text, check_at=waits[pk] + CHECKED_AFTER)
        for pk, text in texts_of(waits).items()
    )
    position.read_to = passed
    position.save()
    return len(waits), len(waits) == STEP or len(seen) == PASSED_PER_STEP


@transaction.atomic
def _remove(now: datetime) -> tuple[int, bool]:
    """How many texts of messages that have left were removed, and whether there is more."""
    rows = ScheduledText.objects.filter(check_at__lte=now).order_by("check_at")
    columns = ("pk", "message__topology", "message__due_at", "message__left_at")
    looked_at = list(rows.values_list(*columns)[:STEP])
    not_observed, stuck = _not_observed(), _stuck(now, [pk for pk, *_ in looked_at])
    settled, late, long_late = [], [], []
    for pk, topology, due_at, left_at in looked_at:
        if left_at is not None or (topology in not_observed and pk not in stuck):
            settled.append(pk)
        elif now - due_at < LONG:
            late.append(pk)
        else:
            long_late.append(pk)
    ScheduledText.objects.filter(pk__in=settled).delete()
    ScheduledText.objects.filter(pk__in=late).update(check_at=now + LONG / 10)
    ScheduledText.objects.filter(pk__in=long_late).update(check_at=now + LONG)
    return len(settled), len(looked_at) == STEP


def _stuck(now: datetime, ids: Collection[int]) -> set[int]:
    """Those of these messages that are stuck: they still wait, although they are due."""
    ranges = stuck_ranges()
    if not ranges:
        return set()
    rows = ScheduledMessage.objects.filter(is_stuck(ranges, now), pk__in=ids)
    return set(rows.values_list("pk", flat=True))


def _not_observed() -> set[int]:
    """Topologies whose messages count as delivered when they are due."""
    return {topology.pk for topology in unobserved()}
