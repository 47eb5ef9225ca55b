"""Wanting yesterday's nightly run, once, when its day is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from threading import Event

from analytics import nightly
from analytics.models import Run

# Copies recorded at midnight's end are synced within a second; a batch may take a little more.
AFTER_MIDNIGHT = timedelta(minutes=10)
CHECK_SECONDS = 5.0


def due_day(now: datetime) -> date:
    """The last UTC day that is over and settled."""
    return (now - AFTER_MIDNIGHT).date() - timedelta(days=1)


def keep_schedule(stop: Event, beat: Callable[[Mapping[str, object]], None]) -> None:
    """Ask for a run of each day as it ends, until `stop` is set."""
    while not stop.is_set():
        day = due_day(datetime.now(UTC))
        if not Run.objects.filter(day=day).exists():
            nightly.want(day)
        beat({"last_day": day.isoformat()})
        stop.wait(CHECK_SECONDS)
