"""What was worked out of the newest snapshot of each broker, once for all who look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from topology.snapshot import Snapshot

Value = TypeVar("Value")


class SnapshotCache(Generic[Value]):
    """One value for each broker, good for as long as the broker has no newer snapshot."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[int, tuple[Snapshot, Value]] = {}

    def get(self, broker_id: int, snapshot: Snapshot, work_out: Callable[[], Value]) -> Value:
        """Whoever asks while it is worked out waits for it."""
        with self._guard:
            kept = self._values.get(broker_id)
            if kept is None or kept[0] is not snapshot:
                kept = self._values[broker_id] = (snapshot, work_out())
            return kept[1]
