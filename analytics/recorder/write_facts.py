"""Moves facts: from their rows into the event log, then away with the rows."""

from __future__ import annotations

from threading import Event
from uuid import uuid4

from django.conf import settings

from analytics import facts
from analytics.log import EventLog
from analytics.recorder.record import Beat

# Rows, of which each can hold several facts.
BATCH = 200
IDLE_SECONDS = 1.0


def write_facts(*, stop: Event, beat: Beat) -> None:
    """Move facts into the log until `stop` is set; facts that exist then have been moved.

    `beat` receives `drained` after every round. Raises LogError; another call continues.
    """
    log = EventLog(settings.EVENT_LOG, f"facts.{uuid4().hex[:8]}")
    total = 0
    try:
        while True:
            is_last = stop.is_set()
            moved = write_batch(log)
            total += moved
            beat({"drained": total})
            if is_last:
                return
            if moved < BATCH:
                stop.wait(IDLE_SECONDS)
    finally:
        log.close()


def write_batch(log: EventLog) -> int:
    """Move the oldest facts; how many. A crash in between writes a line again, with its id."""
    rows = facts.oldest(BATCH)
    if rows:
        log.append(event for _, event in rows)
        facts.forget(row_id for row_id, _ in rows)
    return len(rows)
