"""Keeps one thread per wanted task: starts, watches, restarts with back-off, stops."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from django.conf import settings
from django.db import close_old_connections, connection

from analytics.log import LogError, Slot
from analytics.models.log_host import count_live
from analytics.recorder.record import RecordingFailed
from analytics.storage import StorageError
from delayboard import log_context
from delayboard.models import BackgroundTask
from delayboard.models.background_task import INDEX
from delayboard.worker.heartbeats import Heartbeats, keep_heartbeats, log_trouble
from delayboard.worker.tasks import Task, list_tasks, read_rows
from topology import work
from topology.broker.errors import BrokerError
from topology.database.errors import explain
from topology.models.work import TASK, Work

logger = logging.getLogger(__name__)
CHECK_SECONDS = 1.0
JOIN_SECONDS = 6.0
READ_SECONDS = 2.0
# Longest pause in seconds before a task starts again: an operator expects the work to go on within
# 15 seconds after a broker is back, with the jitter and the connecting.
LONGEST_PAUSE = 8.0
# Seconds after which a task has recovered: its next failure counts as the first.
STEADY_SECONDS = 30.0
# Errors that explain the problem in a sentence; any other is a defect and keeps its traceback.
EXPECTED = (BrokerError, LogError, RecordingFailed, StorageError)


@dataclass
class Running:
    """A task's thread; setting `stop` ends it. `subject` is that of its lease, if it needs one."""

    task: Task
    subject: int | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


def until_stopped() -> threading.Event:
    """An event that SIGTERM and SIGINT set, for the main thread of a command."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def touching(file: Path) -> Iterator[None]:
    """Keep the time of a file new: how a container or a pod is checked that has no port.

    Also while the database hangs: recorders go on meanwhile, and a restart would end them.
    """
    stop = threading.Event()

    def touch() -> None:
        while not stop.is_set():
            with suppress(OSError):
                file.touch()
            stop.wait(CHECK_SECONDS)

    thread = threading.Thread(target=touch, name="heartbeat file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Supervisor:
    """Compares the wanted tasks with the running threads once a second."""

    def __init__(self, *, only: str = "") -> None:
        self.owner = work.name_process()
        self.heartbeats = Heartbeats()
        self._only = only
        self._running: dict[str, Running] = {}
        self._stopping: list[Running] = []
        self._listed: tuple[tuple[object, ...], dict[str, Task]] | None = None
        self._slot: Slot | None = None
        self._leases: work.Leases | None = None
        self._ids: dict[tuple[str, str], int] | None = None

    def run(self, stop: threading.Event) -> bool:
        """Run until `stop` is set; False when a thread did not end in time and must be left."""
        with keep_heartbeats() as self.heartbeats, touching(settings.VAR / "worker.heartbeat"):
            return self._run(stop)

    def _run(self, stop: threading.Event) -> bool:
        while not stop.is_set():
            try:
                self.check()
            except Exception as error:
                if not log_trouble(error):
                    logger.exception(
                        "The worker cannot list its background tasks. The current tasks continue."
                    )
                self._stop_what_is_over()
            close_old_connections()
            stop.wait(CHECK_SECONDS)
        return self.end()

    def check(self) -> None:
        """Start what is wanted and not running, stop what is running and not wanted."""
        wanted = self._list_tasks()
        host = self._find_host()
        ids = self._update_rows(wanted, host)
        tasks = self._choose_ours(wanted, ids)
        self._stop(key for key in self._running if key not in tasks)
        ended = [one for one in self._stopping if not one.is_alive]
        self._stopping = [one for one in self._stopping if one.is_alive]
        self._release(one for one in ended if one.task.key not in tasks)
        stopping = {one.task.key for one in self._stopping}
        for key, task in tasks.items():
            is_there = key in self._running and self._running[key].is_alive
            if not is_there and key not in stopping:
                self._running[key] = self._start(task, ids[key, ""] if task.is_exclusive else None)

    def _stop(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            running = self._running.pop(key)
            running.stop.set()
            self._stopping.append(running)

    def _stop_what_is_over(self) -> None:
        """Stop what another process may do now, because its lease was not renewed in time."""
        if self._leases is None or not self._leases.are_over:
            return
        exclusive = [key for key, one in self._running.items() if one.task.is_exclusive]
        if exclusive:
            logger.warning(
                "The worker could not renew its leases in time. The tasks that only one worker "
                "does stop until it can."
            )
            self._stop(exclusive)

    def _release(self, ended: Iterable[Running]) -> None:
        if self._leases:
            self._leases.release([one.subject for one in ended if one.subject is not None])

    def _list_tasks(self) -> dict[str, Task]:
        """Made again only when a row of what they are for has changed."""
        rows = read_rows()
        if self._listed is None or self._listed[0] != rows:
            self._listed = (rows, list_tasks(self.owner, only=self._only))
        return self._listed[1]

    def _find_host(self) -> str:
        """The name of this host's log; "" while the log cannot be written, as its tasks report."""
        if self._slot is None:
            try:
                self._slot = Slot(settings.EVENT_LOG)
            except LogError as error:
                logger.warning("%s", error)
                return ""
            self.heartbeats.host = self._slot.log
            self._leases = work.Leases(TASK, self._slot.name)
        return self._slot.log

    def _update_rows(self, wanted: Mapping[str, Task], host: str) -> dict[tuple[str, str], int]:
        """Make a row for each task and delete those of none; their ids by key and host."""
        own = {(key, host if task.is_local else ""): task for key, task in wanted.items()}
        if self._ids is not None and own.keys() == self._ids.keys():
            return self._ids
        rows = [
            BackgroundTask(key=key, host=of, name=task.name, broker_id=task.broker_id)
            for (key, of), task in own.items()
        ]
        BackgroundTask.objects.bulk_create(rows, ignore_conflicts=True)
        known = BackgroundTask.objects.filter(host__in=("", host)).values_list("key", "host", "pk")
        ids = {(key, of): pk for key, of, pk in known}
        if not self._only and (left := [pk for one, pk in ids.items() if one not in own]):
            BackgroundTask.objects.filter(pk__in=left).delete()
            Work.objects.filter(kind=TASK, subject__in=left).delete()
        self._ids = {one: ids[one] for one in own}
        return self._ids

    def _choose_ours(
        self, wanted: Mapping[str, Task], ids: Mapping[tuple[str, str], int]
    ) -> dict[str, Task]:
        """The tasks without the exclusive ones that another process has."""
        subjects = {key: ids[key, ""] for key, task in wanted.items() if task.is_exclusive}
        if self._leases is None:
            # Nothing can be recorded; that each task says so is what a person needs, unless another
            # process does it.
            held = frozenset(subjects.values()) - work.leased(TASK)
        else:
            ours = (*self._running.values(), *self._stopping)
            busy = [one.subject for one in ours if one.subject is not None and one.is_alive]
            held = self._leases.hold(
                subjects.values(),
                busy=busy,
                count_sharers=partial(count_live, self.heartbeats.host),
            )
        return {
            key: task
            for key, task in wanted.items()
            if key not in subjects or subjects[key] in held
        }

    def end(self) -> bool:
        """Stop all threads and wait for them; returns whether all ended."""
        # What reads the log ends last: then the other hosts need nothing of it.
        readers = [running for key, running in self._running.items() if key == INDEX]
        others = [running for key, running in self._running.items() if key != INDEX]
        others += self._stopping
        for some, seconds in ((others, JOIN_SECONDS), (readers, READ_SECONDS)):
            until = time.monotonic() + seconds
            for running in some:
                running.stop.set()
            for running in some:
                if running.thread:
                    running.thread.join(max(0.0, until - time.monotonic()))
        ours = (*others, *readers)
        self._release(one for one in ours if not one.is_alive)
        have_ended = not any(one.is_alive for one in ours)
        if self._slot and have_ended:
            self._slot.close()
            self._slot = self._leases = None
        return have_ended

    def _start(self, task: Task, subject: int | None) -> Running:
        running = Running(task, subject)
        running.thread = threading.Thread(
            target=keep_running,
            args=(task, running.stop, self.heartbeats),
            name=task.key,
            daemon=True,
        )
        running.thread.start()
        return running


def keep_one_running(task: Task, stop: threading.Event) -> None:
    """Run the only task of a process."""
    with keep_heartbeats() as heartbeats:
        keep_running(task, stop, heartbeats)


def keep_running(task: Task, stop: threading.Event, heartbeats: Heartbeats) -> None:
    """Run a task again and again until it is stopped, pausing longer after each failure."""
    failures = 0
    while not stop.is_set():
        began = time.monotonic()
        log_context.begin(task=task.key, broker_id=task.broker_id)
        try:
            heartbeats.begin(task)
            task.run(stop=stop, beat=partial(heartbeats.beat, task.key))
        except EXPECTED as error:
            logger.warning("%s: %s", task.name, error)
            heartbeats.fail(task.key, str(error))
        except Exception as error:
            if not log_trouble(error):
                logger.exception("%s failed.", task.name)
            heartbeats.fail(task.key, str(explain(error) or f"{type(error).__name__}: {error}"))
        finally:
            connection.close()
        failures = 0 if time.monotonic() - began > STEADY_SECONDS else failures + 1
        stop.wait(pause(failures))


def pause(failures: int) -> float:
    """Seconds before the next try: doubling from half a second, with jitter, up to 8."""
    doubled = 0.25 * 2.0 ** min(failures, 10)
    return min(LONGEST_PAUSE, doubled) * random.uniform(0.75, 1.25)
