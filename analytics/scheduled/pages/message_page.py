"""One waiting message: its headers, its body where that is kept, and what is known of its path."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.scheduled.pages.lines import Reader, ScheduledLine
from topology.content.bodies import Body, show_body, unpack
from topology.content.text import make_encodable
from topology.redaction import HIDDEN, Redaction


@dataclass(frozen=True)
class Wait:
    """A planned stay in a delay; `mark` is over, now, or to come."""

    begins_at: datetime
    length: timedelta
    mark: str


@dataclass(frozen=True)
class MessagePage:
    """`headers` are (name, text, whether the text is JSON of several lines).

    `is_masked`: something of it is hidden from the reader by a rule.
    """

    line: ScheduledLine
    headers: tuple[tuple[str, str, bool], ...]
    path: tuple[Wait, ...]
    has_body: bool
    is_masked: bool


def make_page(row: ScheduledMessage, now: datetime, hidden: Redaction) -> MessagePage:
    reader = Reader({row.broker_id: hidden})
    line = reader.line(row, now)
    has_body = ScheduledBody.objects.filter(message=row).exists()
    return MessagePage(
        line=line,
        headers=tuple(
            (make_encodable(name), *_value(value)) for name, value in line.headers.items()
        ),
        path=tuple(_find_path(row, reader, now)),
        has_body=has_body,
        is_masked=line.hides_something or (has_body and bool(hidden.body_paths)),
    )


def body(row: ScheduledMessage, hidden: Redaction) -> Body | None:
    """None where all of it is hidden. Raises ScheduledBody.DoesNotExist where none is kept."""
    kept = bytes(ScheduledBody.objects.get(message=row).body)
    if not hidden.body_paths:
        return show_body(kept)
    shown = hidden.body(unpack(kept).data)
    return None if shown == HIDDEN.encode() else replace(show_body(shown), size=len(kept))


def _value(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return make_encodable(value), False
    is_long = isinstance(value, (dict, list))
    text = json.dumps(value, indent=2 if is_long else None, ensure_ascii=False)
    return make_encodable(text), is_long


def _find_path(row: ScheduledMessage, reader: Reader, now: datetime) -> list[Wait]:
    begins_at = row.entered_at
    path: list[Wait] = []
    for length in reader.find_waits(row) or () if begins_at else ():
        assert begins_at is not None
        ends_at = begins_at + length
        is_over = ends_at <= now or row.left_at is not None
        mark = "over" if is_over else "now" if begins_at <= now else "to come"
        path.append(Wait(begins_at, length, mark))
        begins_at = ends_at
    return path
