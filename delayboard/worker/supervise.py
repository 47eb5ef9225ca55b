"""Keeps one thread per wanted task: starts, watches, restarts with back-off, stops."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from django.core.management.base import BaseCommand
from django.db import close_old_connections, connection

from analytics.log import LogError
from analytics.recorder.record import RecordingFailed
from delayboard.models import BackgroundTask
from delayboard.worker.heartbeats import Heartbeats, keep_heartbeats, log_trouble
from delayboard.worker.tasks import Task, list_tasks
from topology import work
from topology.broker.errors import BrokerError
from topology.database.errors import explain

logger = logging.getLogger(__name__)
CHECK_SECONDS = 1.0
JOIN_SECONDS = 8.0
LONGEST_PAUSE = 30.0
# These explain the problem in a sentence; anything else is a defect and keeps its traceback.
EXPECTED = (BrokerError, LogError, RecordingFailed)


@dataclass
class Running:
    """A task's thread; setting `stop` ends it."""

    task: Task
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


def run_alone(command: BaseCommand, name: str, task: Task) -> None:
    """Run one task in the main thread of its command until the process must stop."""
    stop = until_stopped()
    command.stdout.write(f"The {name} runs.")
    command.stdout.flush()
    keep_one_running(task, stop)
    command.stdout.write(f"The {name.partition(' ')[0]} has ended.")


class Supervisor:
    """Compares the wanted tasks with the running threads once a second."""

    def __init__(self, *, only: str = "") -> None:
        self.owner = work.name_process()
        self.heartbeats = Heartbeats()
        self._only = only
        self._running: dict[str, Running] = {}

    def run(self, stop: threading.Event) -> bool:
        """Until `stop` is set; False when a thread did not end in time and must be left."""
        with keep_heartbeats() as self.heartbeats:
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
            close_old_connections()
            stop.wait(CHECK_SECONDS)
        return self.end()

    def check(self) -> None:
        """Start what is wanted and not running, stop what is running and not wanted."""
        tasks = list_tasks(self.owner, only=self._only)
        for key in [key for key in self._running if key not in tasks]:
            self._running.pop(key).stop.set()
        deleted = BackgroundTask.objects.exclude(key__in=tasks)
        if not self._only and deleted.exists():
            deleted.delete()
        for key, task in tasks.items():
            if key not in self._running or not self._running[key].is_alive:
                self._running[key] = self._start(task)

    def end(self) -> bool:
        """Stop all threads and wait for them; returns whether all ended."""
        for running in self._running.values():
            running.stop.set()
        until = time.monotonic() + JOIN_SECONDS
        for running in self._running.values():
            if running.thread:
                running.thread.join(max(0.0, until - time.monotonic()))
        return not any(running.is_alive for running in self._running.values())

    def _start(self, task: Task) -> Running:
        running = Running(task)
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
        failures = 0 if time.monotonic() - began > LONGEST_PAUSE else failures + 1
        stop.wait(pause(failures))


def pause(failures: int) -> float:
    """Seconds before the next try: doubling from half a second, with jitter, up to 30."""
    doubled = 0.25 * 2.0 ** min(failures, 10)
    return min(LONGEST_PAUSE, doubled) * random.uniform(0.75, 1.25)
