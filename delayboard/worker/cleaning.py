"""Deletes what is older than its retention, at the start and every hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Event

from analytics.retention.rules import clean
from delayboard.models.background_task import CLEANING, BackgroundTask, Beat
from delayboard.retention.parked_rows import measure_size
from delayboard.retention.table import RULES

EVERY = timedelta(hours=1)
CHECK_SECONDS = 5.0
# Seconds between two batches, in which others write.
PAUSE_SECONDS = 0.02


class Stopped(Exception):
    """The worker was stopped in the middle of it."""


def keep_clean(stop: Event, beat: Beat) -> None:
    """Clean until `stop` is set. `beat` gets cleaned_at, parked_messages_bytes, removed (counts by
    data) and removed_at, the last time that anything was. Raises LogError.
    """
    background_task = BackgroundTask.objects.filter(key=CLEANING).first()
    details: dict[str, object] = dict(background_task.details) if background_task else {}

    def alive() -> None:
        if stop.is_set():
            raise Stopped
        beat(details)
        stop.wait(PAUSE_SECONDS)

    due_at = datetime.now(UTC)
    while not stop.is_set():
        now = datetime.now(UTC)
        if now >= due_at:
            try:
                removed = clean(RULES, now, alive)
            except Stopped:
                return
            due_at = now + EVERY
            details |= {"cleaned_at": now.isoformat(), "parked_messages_bytes": measure_size()}
            if any(removed.values()):
                details |= {"removed": removed, "removed_at": now.isoformat()}
        beat(details)
        stop.wait(CHECK_SECONDS)
