"""What all recorders of a process read and write every second or two, by one statement for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Any

from analytics.models import Recording
from topology.models import State, Topology

READ_SECONDS = 2.0
WRITE_SECONDS = 1.0


@dataclass(frozen=True)
class Wanted:
    """What an operator may change of a topology while it is recorded."""

    keep_bodies: bool
    retired_tap: str
    params: dict[str, Any]


class SharedRows:
    """The newest rows of all topologies, and which taps were read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._wanted: dict[int, Wanted] = {}
        self._read_at = self._written_at = float("-inf")
        self._marks: dict[int, datetime] = {}

    def read(self, topology_id: int) -> Wanted | None:
        """The row as of the last two seconds; None for one that was deleted."""
        with self._lock:
            if monotonic() - self._read_at > READ_SECONDS or topology_id not in self._wanted:
                names = ("pk", "keep_bodies", "retired_tap", "params")
                rows = Topology.objects.exclude(state=State.DELETED)
                self._wanted = {pk: Wanted(*rest) for pk, *rest in rows.values_list(*names)}
                self._read_at = monotonic()
            return self._wanted.get(topology_id)

    def mark_read(self, topology_id: int) -> None:
        """Nothing waits in its tap that was copied before now; written with the marks of others."""
        with self._lock:
            self._marks[topology_id] = datetime.now(UTC)

    def write(self) -> None:
        """Write the marks, if some wait and others were not just written."""
        with self._lock:
            if not self._marks or monotonic() - self._written_at < WRITE_SECONDS:
                return
            # The earliest is true of all.
            marked, self._marks = self._marks, {}
            rows = Recording.objects.filter(topology__in=marked)
            rows.update(read_at=min(marked.values()))
            self._written_at = monotonic()


shared = SharedRows()
