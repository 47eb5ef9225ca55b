"""The last Snapshot of each broker in this process: one poll for all who look, its age, its error.

The only mutable state of the package beside what views/kept.py holds of it. A poll runs in a
thread of its own and whoever looks waits for it a little, counted from its start: a frozen broker
holds up no page for long, the second who looks hardly at all, and several frozen ones no longer
than one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from topology.broker.address import Address
from topology.broker.background import in_background
from topology.broker.errors import BrokerError
from topology.broker.management import Management
from topology.broker.observe import observe
from topology.broker.refusals import late
from topology.models import Broker
from topology.snapshot import Snapshot

FRESH = timedelta(seconds=2)
# For the line on every page that says who is silent.
LOOKED_AT = timedelta(seconds=10)
RECENT = timedelta(minutes=1)
PATIENCE_SECONDS = 1.5
# After an action, which took its own time already.
AFTERWARDS_SECONDS = 1.0
# Of a broker that failed at the last try little is expected.
SHORT_PATIENCE_SECONDS = 0.5
# A poll that takes longer is slow, as of a vhost with very many queues: it rests so many times as
# long as it took, and until it takes so many times as long it is no sign of trouble.
SLOW_SECONDS = 1.0
REST = 4
LATER_THAN_EVER = 3
# After that a poll is taken for lost, though each of its calls may answer in time.
ABANDONED_SECONDS = 30.0


@dataclass(frozen=True)
class Latest:
    """`snapshot` is the last good one, however old; `error` is why the last try failed."""

    snapshot: Snapshot | None
    tried_at: datetime
    error: str = ""

    @property
    def is_reachable(self) -> bool:
        return not self.error

    @property
    def slow_seconds(self) -> float:
        """How long the last poll took if that was long and it went well, else 0."""
        if self.error or self.snapshot is None or self.snapshot.poll_seconds <= SLOW_SECONDS:
            return 0.0
        return self.snapshot.poll_seconds


@dataclass(eq=False)
class _Poll:
    """A poll under way, `began` in monotonic seconds; its future holds what it found out."""

    address: Address
    began: float = field(default_factory=time.monotonic)
    future: Future[Latest] = field(default_factory=Future)

    def left(self, patience: float) -> float:
        """Seconds that remain of `patience`, never less than none."""
        return max(0.0, self.began + patience - time.monotonic())


_latest: dict[int, Latest] = {}
_polls: dict[int, _Poll] = {}
_guard = threading.Lock()


def latest(broker_id: int) -> Latest | None:
    """What is known without asking the broker."""
    return _latest.get(broker_id)


def silent(brokers: Iterable[Broker]) -> list[Broker]:
    """Those that do not answer now, or did not within the last minute.

    Nobody waits for that: a poll is begun where nothing is known that is young enough, and one
    that takes too long is an answer too.
    """
    return [broker for broker in brokers if _is_silent(broker)]


def _is_silent(broker: Broker) -> bool:
    found = _known_or_poll(broker, LOOKED_AT)
    if isinstance(found, Latest):
        return bool(found.error)
    known = _latest.get(broker.pk)
    failed = bool(known and known.error and known.tried_at > datetime.now(UTC) - RECENT)
    return failed or not found.left(max(PATIENCE_SECONDS, _usual(known)))


def forget(broker_id: int) -> None:
    """After an address changed: numbers of another broker must not be shown."""
    with _guard:
        _latest.pop(broker_id, None)
        _polls.pop(broker_id, None)


def fresh(broker: Broker, max_age: timedelta = FRESH) -> Latest:
    """The latest, polled now if it is older than `max_age`; a failure counts as a try too.

    While the broker is silent: the last known with an error, 1.5 seconds after the poll began. Of
    one whose polls are slow the last known is good for longer, and handed out during a poll.
    """
    return fresh_all([broker], max_age)[0]


def fresh_all(brokers: Iterable[Broker], max_age: timedelta = FRESH) -> list[Latest]:
    """The latest of each, all of them asked at once."""
    asked = [(broker, _known_or_poll(broker, max_age)) for broker in brokers]
    return [
        found if isinstance(found, Latest) else _outcome(broker, found, _patience(broker))
        for broker, found in asked
    ]


def poll(broker: Broker) -> Latest:
    """Ask the broker now. Never raises BrokerError: the failure is part of the result."""
    try:
        begun = _begin(broker.pk, broker.address)
    except BrokerError as error:
        return _unaddressed(broker, error)
    return _outcome(broker, begun, AFTERWARDS_SECONDS)


def _known_or_poll(broker: Broker, max_age: timedelta) -> Latest | _Poll:
    if known := _young(broker.pk, max_age):
        return known
    try:
        address = broker.address
    except BrokerError as error:
        return _unaddressed(broker, error)
    with _guard:
        # Another's poll may have ended meanwhile.
        if known := _young(broker.pk, max_age):
            return known
        running = _polls.get(broker.pk)
        if running and running.address == address and running.left(ABANDONED_SECONDS):
            return running
        return _begin_guarded(broker.pk, address)


def _young(broker_id: int, max_age: timedelta) -> Latest | None:
    known = _latest.get(broker_id)
    if known is None:
        return None
    lasting = max(max_age, timedelta(seconds=REST * known.slow_seconds))
    return known if datetime.now(UTC) - known.tried_at < lasting else None


def _begin(broker_id: int, address: Address) -> _Poll:
    with _guard:
        return _begin_guarded(broker_id, address)


def _begin_guarded(broker_id: int, address: Address) -> _Poll:
    begun = _polls[broker_id] = _Poll(address)
    begun.future = in_background(lambda: _look(broker_id, begun), f"poll of {address.host}")
    return begun


def _look(broker_id: int, poll: _Poll) -> Latest:
    """In the poll's thread. What a later poll or `forget` made void is not kept."""
    result = None
    try:
        with Management(poll.address) as management:
            result = Latest(observe(management), datetime.now(UTC))
    except BrokerError as error:
        result = _failed(broker_id, error)
    finally:
        with _guard:
            if _polls.get(broker_id) is poll:
                del _polls[broker_id]
                if result is not None:
                    _latest[broker_id] = result
    return result


def _outcome(broker: Broker, poll: _Poll, patience: float) -> Latest:
    try:
        return poll.future.result(poll.left(patience))
    except TimeoutError:
        known = _latest.get(broker.pk)
        if known is not None and poll.left(_usual(known)):
            return known
        return _failed(broker.pk, late(poll.address))


def _usual(known: Latest | None) -> float:
    """Until how many seconds a poll of a slow broker is on its way and not late; else 0."""
    return LATER_THAN_EVER * known.slow_seconds if known else 0.0


def _patience(broker: Broker) -> float:
    known = _latest.get(broker.pk)
    if known and known.slow_seconds > PATIENCE_SECONDS:
        return 0.0
    return SHORT_PATIENCE_SECONDS if known and known.error else PATIENCE_SECONDS


def _unaddressed(broker: Broker, error: BrokerError) -> Latest:
    result = _latest[broker.pk] = _failed(broker.pk, error)
    return result


def _failed(broker_id: int, error: BrokerError) -> Latest:
    now = datetime.now(UTC)
    return replace(_latest.get(broker_id) or Latest(None, now), tried_at=now, error=str(error))
