"""One thread per subject computes its state once for all pages that watch it.

Each broker is a subject of its own, so that a silent one delays only its own pages. A poll uses
less than a twentieth of its interval: a slow broker is polled less often, but its return is noticed
within seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import count

from django.db import close_old_connections, connection

from delayboard.live.page_state import Newest, State
from delayboard.live.subjects import Subject
from topology.database.errors import explain

logger = logging.getLogger(__name__)
Deliver = Callable[[Newest], None]
SHARE_OF_INTERVAL = 0.05
REPEAT_SECONDS = 5.0
LONGEST_SECONDS = 5.0


class Feed:
    """The watched subjects of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def watch(self, subject: Subject, deliver: Deliver) -> None:
        """Call `deliver` from another thread with every new state, from now on."""
        with self._lock:
            watched = self._watched.get(subject.key)
            if watched is None:
                watched = self._watched[subject.key] = _Watched(subject)
                watched.start()
            watched.add(deliver)

    def note_keys(self, subject: Subject, deliver: Deliver, keys: frozenset[str]) -> None:
        """What a page shows, for a subject that is read for the rows of its pages."""
        with self._lock:
            watched = self._watched.get(subject.key)
            if watched is not None:
                watched.note_keys(deliver, keys)

    def leave(self, subject: Subject, deliver: Deliver) -> None:
        """The thread ends with the last one who watches."""
        with self._lock:
            watched = self._watched.get(subject.key)
            if watched is not None and watched.remove(deliver):
                watched.stop.set()
                del self._watched[subject.key]

    def end(self) -> None:
        """For the end of the process."""
        with self._lock:
            for watched in self._watched.values():
                watched.stop.set()
            self._watched.clear()


class _Watched:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._watchers: dict[Deliver, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._last: Newest | None = None
        self._numbers = count(1)
        self.stop = threading.Event()

    def start(self) -> None:
        name = f"feed of {self._subject.key}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, deliver: Deliver) -> None:
        with self._lock:
            self._watchers[deliver] = frozenset()
            if self._last is not None:
                deliver(self._last)

    def remove(self, deliver: Deliver) -> bool:
        """Whether nobody watches any more."""
        with self._lock:
            self._watchers.pop(deliver, None)
            return not self._watchers

    def note_keys(self, deliver: Deliver, keys: frozenset[str]) -> None:
        with self._lock:
            if deliver in self._watchers:
                self._watchers[deliver] = keys

    def _run(self) -> None:
        sent_at = 0.0
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                close_old_connections()
                state = self._read()
                took = time.monotonic() - began
                if state is not None and (self._is_news(state) or began - sent_at > REPEAT_SECONDS):
                    sent_at = began
                    self._send_state(state)
                pause = min(LONGEST_SECONDS, took / SHARE_OF_INTERVAL - took)
                self.stop.wait(max(self._subject.seconds - took, pause))
        finally:
            connection.close()

    def _read(self) -> State | None:
        try:
            if self._subject.read_rows is None:
                return self._subject.read()
            with self._lock:
                keys = frozenset[str]().union(*self._watchers.values())
            return self._subject.read_rows(keys)
        except Exception as error:
            if trouble := explain(error):
                logger.warning("Live pages show old values: %s", trouble)
            else:
                logger.exception("Delayboard could not compute the state of %s.", self._subject.key)
            return None

    def _is_news(self, state: State) -> bool:
        if self._last is None:
            return True
        return {**state, "seq": 0} != {**self._last.state, "seq": 0}

    def _send_state(self, state: State) -> None:
        with self._lock:
            state["seq"] = next(self._numbers)
            self._last = newest = Newest(state)
            for deliver in self._watchers:
                deliver(newest)


feed = Feed()
