"""One line of an import -> the line that the event log gets for it, or why it gets none.

Python and not Spark's own functions: what an event is, analytics.events alone decides.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f

from analytics.events import MessageEvent, clean, decode, encode
from analytics.jobs.schema import KNOWN_SOURCES

PROBLEM_MARK = b"!"
LONGEST_PROBLEM = 300
SCHEMA = (
    "problem string, event_id string, date string, hour string, entered string,"
    " recorded_us bigint, line string"
)


class Read(NamedTuple):
    """The columns of SCHEMA: `problem`, or the rest. `entered` is the day it began to wait."""

    problem: str | None
    event_id: str | None = None
    date: str | None = None
    hour: str | None = None
    entered: str | None = None
    recorded_us: int | None = None
    line: str | None = None


def of_raw(value: Column) -> Column:
    """A line as it lies in a file, in bytes; null for a blank one."""
    return f.udf(read, SCHEMA, useArrow=False)(value)


def of_staged(value: Column) -> Column:
    """A line as analytics.importing wrote it: an event, or the mark and what is wrong."""
    return f.udf(read_staged, SCHEMA, useArrow=False)(value)


def read_staged(line: bytearray) -> Read | None:
    if line.startswith(PROBLEM_MARK):
        return Read(_bounded(line[1:].decode("utf-8", "backslashreplace")))
    return read(line)


def read(line: bytearray) -> Read | None:
    text = bytes(line).strip()
    if not text:
        return None
    try:
        return _of_event(decode(text))
    except (ValueError, OverflowError) as error:
        return Read(_bounded(str(error)))


def _of_event(event: MessageEvent) -> Read:
    if event.source not in KNOWN_SOURCES:
        event = replace(event, source="import")
    at = event.recorded_at.astimezone(UTC)
    entered = at
    if event.kind == "delivered":
        entered -= timedelta(milliseconds=event.requested_delay_ms)
    return Read(
        problem=None,
        event_id=clean(event.event_id),
        date=at.date().isoformat(),
        hour=f"{at.hour:02}",
        entered=entered.date().isoformat(),
        recorded_us=int(at.timestamp()) * 1_000_000 + at.microsecond,
        line=encode(event).decode(),
    )


def _bounded(problem: str) -> str:
    return clean(problem)[:LONGEST_PROBLEM]
