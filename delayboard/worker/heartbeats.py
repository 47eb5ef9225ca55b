"""The heartbeats of a process: kept in memory, and written by one statement every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy

from django.db import close_old_connections, connection
from django.utils import timezone

from delayboard.models import BackgroundTask
from delayboard.worker.tasks import Task
from topology.database.errors import explain

logger = logging.getLogger(__name__)
# Seconds between two writes. A task beats every two seconds, and is late after ten
# (delayboard.models.background_task).
WRITE_SECONDS = 3.0
FIELDS = ("beat_at", "details", "last_error", "last_error_at")


@contextmanager
def keep_heartbeats() -> Iterator[Heartbeats]:
    """Heartbeats that a thread writes during the block, and once more at its end."""
    heartbeats = Heartbeats()
    thread = threading.Thread(target=heartbeats.run, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield heartbeats
    finally:
        heartbeats.stop.set()
        heartbeats.urgent.set()
        thread.join()


class Heartbeats:
    """The rows of the tasks of this process, as the tasks last reported.

    `host` is the name of this host's event log. `urgent` has the rows written at once: after a
    failure, and after the first heartbeat that follows it or a start.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.urgent = threading.Event()
        self.host = ""
        self._lock = threading.Lock()
        self._rows: dict[str, BackgroundTask] = {}
        self._reported: set[str] = set()

    def begin(self, task: Task) -> None:
        """The row of a task that starts, with what it reported before."""
        started = {"name": task.name, "broker_id": task.broker_id, "started_at": timezone.now()}
        row, _ = BackgroundTask.objects.update_or_create(
            key=task.key, host=self.host if task.is_local else "", defaults=started
        )
        with self._lock:
            # Its row may be another since: a task can be deleted and made again.
            self._rows.setdefault(task.key, row).pk = row.pk

    def beat(self, key: str, details: Mapping[str, object]) -> None:
        with self._lock:
            row = self._rows[key]
            is_news = row.is_late or row.is_failing
            row.beat_at, row.details, row.last_error = timezone.now(), dict(details), ""
            self._reported.add(key)
        if is_news:
            self.urgent.set()

    def fail(self, key: str, error: str) -> None:
        """Nothing where the task could not begin, because its row could not be written."""
        with self._lock:
            if row := self._rows.get(key):
                row.last_error, row.last_error_at = error, timezone.now()
                self._reported.add(key)
        self.urgent.set()

    def run(self) -> None:
        """Write every WRITE_SECONDS, and a last time once `stop` is set."""
        is_last = False
        while not is_last:
            self.urgent.wait(WRITE_SECONDS)
            self.urgent.clear()
            is_last = self.stop.is_set()
            try:
                self.write()
            except Exception as error:
                if not log_trouble(error):
                    logger.exception("The worker could not store the heartbeats of its tasks.")
            finally:
                # Close a connection that failed; to close a good one would cost more than the
                # write.
                close_old_connections()
        connection.close()

    def write(self) -> None:
        """Write what tasks reported since the last time; rows that were deleted stay deleted."""
        with self._lock:
            reported, self._reported = self._reported, set()
            said = {
                key: (row.pk, row.beat_at, _content(row))
                for key, row in self._rows.items()
                if key in reported
            }
        try:
            # Other processes write to rows that they share, or had before.
            stored = {
                pk: tuple(content)
                for pk, *content in BackgroundTask.objects.filter(
                    pk__in=[pk for pk, *_ in said.values()]
                ).values_list("pk", "details", "last_error", "last_error_at")
            }
            alike = {pk: at for pk, at, content in said.values() if stored.get(pk) == content}
            if alike:
                # Most say the same as before, and to state it of each row takes long.
                BackgroundTask.objects.filter(pk__in=alike).update(
                    beat_at=min(filter(None, alike.values()), default=None)
                )
            with self._lock:
                others = [
                    copy(self._rows[key]) for key, (pk, *_) in said.items() if pk not in alike
                ]
            BackgroundTask.objects.bulk_update(others, FIELDS)
        except Exception:
            # With the next ones.
            with self._lock:
                self._reported |= reported
            raise


def _content(row: BackgroundTask) -> tuple[object, ...]:
    """What a heartbeat says beside its time."""
    return row.details, row.last_error, row.last_error_at


def log_trouble(error: Exception) -> bool:
    """Log what is wrong with the database or a disk, in the same line for every task.

    False when the error is about something else.
    """
    trouble = explain(error)
    if trouble is not None:
        logger.warning("The worker cannot continue: %s", trouble)
    return trouble is not None
