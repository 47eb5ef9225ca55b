"""One waiting message: its headers, its body where that is kept, and what is known of its way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.scheduled.lines import Line, Reader
from topology.bodies import Body, show_body


@dataclass(frozen=True)
class Stay:
    """A planned stay in a delay; `mark` is over, now, or to come."""

    begins_at: datetime
    length: timedelta
    mark: str


@dataclass(frozen=True)
class Told:
    """`headers` are (name, text, whether the text is JSON of several lines)."""

    line: Line
    headers: tuple[tuple[str, str, bool], ...]
    way: tuple[Stay, ...]
    has_body: bool


def told(row: ScheduledMessage, now: datetime) -> Told:
    reader = Reader()
    return Told(
        line=reader.line(row, now),
        headers=tuple(_headers(row.headers_json)),
        way=tuple(_way(row, reader, now)),
        has_body=ScheduledBody.objects.filter(message=row).exists(),
    )


def body(row: ScheduledMessage) -> Body:
    """Raises ScheduledBody.DoesNotExist where none is kept."""
    return show_body(bytes(ScheduledBody.objects.get(message=row).body))


def _headers(text: str) -> list[tuple[str, str, bool]]:
    read: dict[str, Any] = json.loads(text)
    return [(name, *_value(value)) for name, value in read.items()]


def _value(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return value, False
    is_long = isinstance(value, (dict, list))
    return json.dumps(value, indent=2 if is_long else None, ensure_ascii=False), is_long


def _way(row: ScheduledMessage, reader: Reader, now: datetime) -> list[Stay]:
    begins_at = row.entered_at
    way: list[Stay] = []
    for length in reader.stays(row) or () if begins_at else ():
        assert begins_at is not None
        ends_at = begins_at + length
        is_over = ends_at <= now or row.left_at is not None
        mark = "over" if is_over else "now" if begins_at <= now else "to come"
        way.append(Stay(begins_at, length, mark))
        begins_at = ends_at
    return way
