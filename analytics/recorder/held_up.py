"""Notices that this process, or the machine under it, was stopped: copies waited meanwhile."""

from __future__ import annotations

from threading import Lock, Thread
from time import monotonic, sleep

BEAT_SECONDS = 0.1
# How late a beat shows a stop; less is a busy machine.
DELAYED_SECONDS = 0.25


class Pulse:
    """Beats in a thread, for all recorders of the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: Thread | None = None
        self._beaten_at = monotonic()
        self._held_up_at = float("-inf")

    def begin(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._beaten_at = monotonic()
                self._thread = Thread(target=self._run, name="pulse", daemon=True)
                self._thread.start()

    def was_held_up(self, since: float) -> bool:
        """Whether the process was stopped at this moment, in monotonic seconds, or later."""
        with self._lock:
            # It may go on before the thread does.
            self._look()
            return self._held_up_at >= since

    def beat(self) -> None:
        with self._lock:
            self._look()
            self._beaten_at = monotonic()

    def _look(self) -> None:
        if monotonic() - self._beaten_at > BEAT_SECONDS + DELAYED_SECONDS:
            self._held_up_at = monotonic()

    def _run(self) -> None:
        while True:
            sleep(BEAT_SECONDS)
            self.beat()


pulse = Pulse()
