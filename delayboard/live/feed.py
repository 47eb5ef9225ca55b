"""One thread per subject computes its version once for all pages that watch it.

Each broker is a subject of its own, so that a silent one delays only its own pages. A poll uses
less than a twentieth of its interval: a slow broker is polled less often, but its return is noticed
within seconds.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable

from django.db import close_old_connections, connection

from delayboard.live.subjects import News, Subject
from topology.database.errors import explain

logger = logging.getLogger(__name__)
# Function that sends news to the pages, as JSON.
Deliver = Callable[[str], None]
SHARE_OF_INTERVAL = 0.05
REPEAT_SECONDS = 5.0
LONGEST_SECONDS = 5.0
# Most pages of a subject that are fetched in a second.
FETCHES = 100.0


class Feed:
    """The watched subjects of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def watch(self, subject: Subject, deliver: Deliver) -> None:
        """Call `deliver` from another thread with everything new, from now on."""
        with self._lock:
            watched = self._watched.get(subject.key)
            if watched is None:
                watched = self._watched[subject.key] = _Watched(subject)
                watched.start()
            watched.add(deliver)

    def leave(self, subject: Subject, deliver: Deliver) -> None:
        """The thread ends with the last one who watches."""
        with self._lock:
            watched = self._watched.get(subject.key)
            if watched is not None and watched.remove(deliver):
                watched.stop.set()
                del self._watched[subject.key]

    def end(self) -> None:
        """Stop all subjects at the end of the process."""
        with self._lock:
            for watched in self._watched.values():
                watched.stop.set()
            self._watched.clear()


class _Watched:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._watchers: set[Deliver] = set()
        self._lock = threading.Lock()
        self._last: News | None = None
        self.stop = threading.Event()

    def start(self) -> None:
        name = f"feed of {self._subject.key}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, deliver: Deliver) -> None:
        with self._lock:
            self._watchers.add(deliver)
            if self._last is not None:
                deliver(self._write(self._last))

    def remove(self, deliver: Deliver) -> bool:
        """Whether nobody watches any more."""
        with self._lock:
            self._watchers.discard(deliver)
            return not self._watchers

    def _run(self) -> None:
        sent_at = 0.0
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                close_old_connections()
                news = self._read()
                took = time.monotonic() - began
                if news is not None and (self._is_new(news) or began - sent_at > REPEAT_SECONDS):
                    sent_at = began
                    self._send(news)
                pause = min(LONGEST_SECONDS, took / SHARE_OF_INTERVAL - took)
                self.stop.wait(max(self._subject.seconds - took, pause))
        finally:
            connection.close()

    def _read(self) -> News | None:
        try:
            return self._subject.read()
        except Exception as error:
            if trouble := explain(error):
                logger.warning("Live pages show old values: %s", trouble)
            else:
                logger.exception("Delayboard could not read the version of %s.", self._subject.key)
            return None

    def _is_new(self, news: News) -> bool:
        last = self._last
        return last is None or (news.version, news.rows) != (last.version, last.rows)

    def _send(self, news: News) -> None:
        with self._lock:
            self._last = news
            text = self._write(news)
            for deliver in self._watchers:
                deliver(text)

    def _write(self, news: News) -> str:
        """`within` are the seconds over which the pages spread their fetches."""
        at = news.at.isoformat() if news.at else ""
        within = len(self._watchers) / FETCHES
        return json.dumps({"version": news.version, "at": at, "rows": news.rows, "within": within})


feed = Feed()
