"""Notices that a classic tap drops copies while it is read, only not fast enough."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from time import monotonic

from analytics.recorder.gaps import Fill, Loss, read_fill, write
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.time_limit import run_in_background
from topology.models import Topology

CHECK_SECONDS = 5.0
TOO_SLOW = "The recorder read the tap too slowly. The tap was full and dropped copies."


class Overflow:
    """Looks at one tap while its recorder is behind; used by the recorder's thread."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._pending: Future[Fill] | None = None
        self._checked_at = float("-inf")
        self._sure_at = datetime.now(UTC)
        self._dropped_before: int | None = None
        self._is_over = False

    def step(self, *, is_behind: bool) -> None:
        """Begin a look when it is time, take up the answer of one that was begun."""
        if self._pending is None:
            is_first = self._checked_at < 0
            if is_first or ((is_behind or self._is_over) and self._is_time()):
                self._pending = run_in_background(self._read_fill, "check a tap")
            elif not is_behind and not self._is_over:
                self._sure_at = datetime.now(UTC)
            return
        if not self._pending.done():
            return
        asked, self._pending, self._checked_at = self._pending, None, monotonic()
        try:
            self.take(asked.result(), is_behind=is_behind)
        except BrokerError:
            # The recorder has its own connection, and reports problems with the broker.
            return

    def take(self, fill: Fill, *, is_behind: bool) -> None:
        """What a look has shown. The gap ends when the tap is read as it fills again."""
        if fill.is_full:
            self._is_over = True
        elif self._is_over and not is_behind:
            write(self._topology, self._sure_at, Loss(TOO_SLOW, self._count_dropped(fill)))
            self._is_over = False
        if not self._is_over:
            self._sure_at = datetime.now(UTC)
            self._dropped_before = fill.dropped

    def _count_dropped(self, fill: Fill) -> int | None:
        if fill.dropped is None or self._dropped_before is None:
            return None
        return max(0, fill.dropped - self._dropped_before)

    def _is_time(self) -> bool:
        return monotonic() - self._checked_at > CHECK_SECONDS

    def _read_fill(self) -> Fill:
        with Management(self._topology.broker.address) as management:
            return read_fill(management.queue(self._topology.tap_queue))
