"""A worker beside the site, as long as a test needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from django.db import connection

from delayboard.worker.supervise import Supervisor
from delayboard.worker.tasks import list_tasks


@contextmanager
def worker_at_work() -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        assert Supervisor().run(stop)

    with _at_work(stop, [run]):
        yield


@contextmanager
def background_tasks_at_work(*keys: str) -> Iterator[None]:
    """These tasks of a worker alone."""
    stop, tasks = threading.Event(), list_tasks("test")
    with _at_work(
        stop, [partial(tasks[key].run, stop=stop, beat=lambda said: None) for key in keys]
    ):
        yield


@contextmanager
def _at_work(stop: threading.Event, runs: Sequence[Callable[[], None]]) -> Iterator[None]:
    def closing(run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            connection.close()

    threads = [threading.Thread(target=closing, args=[run]) for run in runs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
