"""The seconds that something takes, without those in which a busy machine did not let it run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK_SECONDS = 0.02


class Stopwatch:
    """`seconds` from the begin of the block to its end, less by how much the ticks came late."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._late = 0.0
        self._is_over = threading.Event()

    def _tick(self) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            self._is_over.wait(TICK_SECONDS)
            self._late += max(0.0, time.monotonic() - began - TICK_SECONDS)


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the block: wall-clock seconds, in which it waits or works, not waits for a processor."""
    watch = Stopwatch()
    ticks = threading.Thread(target=watch._tick)
    began = time.monotonic()
    ticks.start()
    try:
        yield watch
    finally:
        took = time.monotonic() - began
        watch._is_over.set()
        ticks.join()
        watch.seconds = took - watch._late
