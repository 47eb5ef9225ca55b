"""Moves the finished hours of this host's event log to LOG_URL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic

from django.conf import settings

from analytics import shared_log
from analytics.log import take_lock
from delayboard.models.background_task import Beat

CHECK_SECONDS = 10.0
BEAT_SECONDS = 2.0
# Time for which lines come late into the hours of a day; into earlier ones only by an import.
RECENT = timedelta(days=1)
ALL_SECONDS = 600.0


def keep_sending(*, stop: Event, beat: Beat) -> None:
    """Send until `stop` is set.

    `beat` receives: sent_parts, and unsent_bytes of all hours with lines that are not sent. Raises
    StorageError and LogError; another call continues.
    """
    while not stop.is_set():
        with take_lock(settings.EVENT_LOG, "sending") as is_ours:
            if is_ours:
                _keep_sending(settings.EVENT_LOG, stop, beat)
                return
        beat({"waits": True})
        stop.wait(BEAT_SECONDS)


def _keep_sending(log: Path, stop: Event, beat: Beat) -> None:
    sent, all_at = 0, float("-inf")
    while not stop.is_set():
        now = datetime.now(UTC)
        since = (now - RECENT).date()
        if monotonic() - all_at > ALL_SECONDS:
            since, all_at = date.min, monotonic()
        unsent = shared_log.find_unsent(log, since)
        # Before the first is sent: while LOG_URL does not answer, pages show what is not sent.
        shared_log.report_unsent(log, unsent)
        finished = [one for one in unsent if one.is_finished(now)]
        for one in finished:
            if stop.is_set():
                return
            shared_log.send(log, one, is_over=one.is_over(now))
            sent += 1
            beat({"sent_parts": sent})
        left = [one for one in unsent if one not in finished]
        shared_log.report_unsent(log, left)
        due_at = monotonic() + CHECK_SECONDS
        while monotonic() < due_at and not stop.is_set():
            beat({"sent_parts": sent, "unsent_bytes": sum(one.bytes for one in left)})
            stop.wait(BEAT_SECONDS)
