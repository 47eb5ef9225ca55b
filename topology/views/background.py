"""What takes too long for a page, worked out of a broker's newest snapshot beside the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from topology.broker.time_limit import run_in_background
from topology.models import Broker
from topology.snapshot import Snapshot

Value = TypeVar("Value")

# Most objects for which a result is computed within the request.
AT_ONCE = 3000
# Seconds that a page waits for a result that may be ready soon.
PATIENCE_SECONDS = 0.3
# Age, against the newest snapshot, from which on a result is not shown.
STALE = timedelta(minutes=1)


@dataclass(frozen=True)
class Worked(Generic[Value]):
    """A value and the snapshot that it was worked out of."""

    snapshot: Snapshot
    value: Value


class BackgroundResults(Generic[Value]):
    """One value for each place, of one snapshot after the other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._done: dict[Hashable, Worked[Value]] = {}
        self._begun: dict[Hashable, tuple[Snapshot, Future[Value]]] = {}

    def get(
        self, place: Hashable, snapshot: Snapshot, work_out: Callable[[], Value]
    ) -> Worked[Value] | None:
        """The result for this snapshot, or for one shortly before while it is computed; None for
        neither.

        One thread for a place works at a time, and a failure in it is raised to one who asks.
        """
        with self._guard:
            done = self._done.get(place)
            if done is not None and done.snapshot is snapshot:
                return done
            if place not in self._begun:
                future = run_in_background(work_out, f"layout of {place}")
                self._begun[place] = (snapshot, future)
            begun_of, future = self._begun[place]
        self._wait(place, begun_of, future)
        done = self._done.get(place)
        return done if done and snapshot.taken_at - done.snapshot.taken_at <= STALE else None

    def _wait(self, place: Hashable, snapshot: Snapshot, future: Future[Value]) -> None:
        if not wait([future], PATIENCE_SECONDS).done:
            return
        with self._guard:
            begun = self._begun.get(place)
            if begun is not None and begun[1] is future:
                del self._begun[place]
                if future.exception() is None:
                    self._done[place] = Worked(snapshot, future.result())
        future.result()


class SnapshotResults(Generic[Value]):
    """What is worked out of each broker's newest snapshot, beside the requests if that is large."""

    def __init__(self) -> None:
        self._kept: SnapshotCache[Value] = SnapshotCache()
        self._background: BackgroundResults[Value] = BackgroundResults()

    def get(
        self, broker: Broker, snapshot: Snapshot, work_out: Callable[[], Value]
    ) -> Worked[Value] | None:
        """None while that of a large snapshot is not done."""
        if len(snapshot.definitions) <= AT_ONCE:
            return Worked(snapshot, self._kept.get(broker.pk, snapshot, work_out))
        place = (broker.pk, broker.amqp_addresses, broker.management_urls, broker.vhost)
        return self._background.get(place, snapshot, work_out)


class SnapshotCache(Generic[Value]):
    """One value for each broker, good for as long as the broker has no newer snapshot."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[int, tuple[Snapshot, Value]] = {}

    def get(self, broker_id: int, snapshot: Snapshot, work_out: Callable[[], Value]) -> Value:
        """The result; who asks while it is computed waits for it."""
        with self._guard:
            kept = self._values.get(broker_id)
            if kept is None or kept[0] is not snapshot:
                kept = self._values[broker_id] = (snapshot, work_out())
            return kept[1]
