"""The last Snapshot of each broker in this process: one poll for all who look, its age, its error.

The only mutable state of the package; guarded by one lock per broker, so that two requests
never poll the same broker at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from topology.broker.errors import BrokerError
from topology.broker.management import Management
from topology.broker.observe import observe
from topology.models import Broker
from topology.snapshot import Snapshot

POLL_READ_SECONDS = 2.5
FRESH = timedelta(seconds=2)


@dataclass(frozen=True)
class Latest:
    """`snapshot` is the last good one, however old; `error` is why the last try failed."""

    snapshot: Snapshot | None
    tried_at: datetime
    error: str = ""

    @property
    def is_reachable(self) -> bool:
        return not self.error


_latest: dict[int, Latest] = {}
_locks: dict[int, threading.Lock] = {}
_guard = threading.Lock()


def latest(broker_id: int) -> Latest | None:
    """What is known without asking the broker."""
    return _latest.get(broker_id)


def forget(broker_id: int) -> None:
    """After an address changed: numbers of another broker must not be shown."""
    _latest.pop(broker_id, None)


def fresh(broker: Broker, max_age: timedelta = FRESH) -> Latest:
    """The latest, polled now if it is older than `max_age`; a failure counts as a try too."""
    with _lock(broker.pk):
        known = _latest.get(broker.pk)
        if known and datetime.now(UTC) - known.tried_at < max_age:
            return known
        return _poll(broker)


def poll(broker: Broker) -> Latest:
    """Ask the broker now. Never raises BrokerError: the failure is part of the result."""
    with _lock(broker.pk):
        return _poll(broker)


def _poll(broker: Broker) -> Latest:
    known = _latest.get(broker.pk)
    try:
        with Management(broker.address, read_seconds=POLL_READ_SECONDS) as management:
            result = Latest(observe(management), datetime.now(UTC))
    except BrokerError as error:
        old = known or Latest(None, datetime.now(UTC))
        result = replace(old, tried_at=datetime.now(UTC), error=str(error))
    _latest[broker.pk] = result
    return result


def _lock(broker_id: int) -> threading.Lock:
    with _guard:
        return _locks.setdefault(broker_id, threading.Lock())
