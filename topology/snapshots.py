"""The last Snapshot of each broker in this process: one poll for all who look, its age, its error.

The only mutable state of the package beside what views/background.py holds of it. A poll runs in a
thread of its own and whoever looks waits for it a little, counted from its start: a frozen broker
holds up no page for long, the second who looks hardly at all, and several frozen ones no longer
than one. No broker is polled twice at a time, however long a poll takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from topology.broker.address import Address
from topology.broker.errors import BrokerError, Unreachable
from topology.broker.failures import explain_timeout
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.management.refresh import refresh_objects
from topology.broker.time_limit import run_in_background
from topology.definitions import BrokerObject
from topology.delays import format_span
from topology.models import Broker
from topology.snapshot import QueueNumbers, Snapshot

FRESH = timedelta(seconds=2)
# Age of a poll up to which the line on every page names a broker without an answer.
POLLED_WITHIN = timedelta(seconds=10)
RECENT = timedelta(minutes=1)
PATIENCE_SECONDS = 1.5
# Seconds for a poll after an action, which took its own time already.
AFTERWARDS_SECONDS = 1.0
# Seconds for a broker that failed at the last try.
SHORT_PATIENCE_SECONDS = 0.5
# Seconds from which on a poll is slow, as of a virtual host with very many queues. The broker then
# rests REST times as long as the poll took, and counts as silent only after LATER_THAN_EVER times
# as long.
SLOW_SECONDS = 1.0
REST = 4
LATER_THAN_EVER = 3
# The time for which the numbers of queues are kept, and the time between two of them.
TREND = timedelta(minutes=2)
SAMPLES_APART = timedelta(seconds=15)
# Seconds of silence after which a poll is abandoned; no call of it may take that long.
ABANDONED_SECONDS = 30.0
# Seconds that an action waits for a broker to answer.
ACTION_SECONDS = 10.0


@dataclass(frozen=True)
class Latest:
    """`snapshot` is the last good one, however old; `error` is why there is no newer one.

    With `reading_since` that is no trouble: the broker answers, and has so much in it that its
    first snapshot is on the way since then. `samples` are the numbers of all queues at moments of
    the last TREND.
    """

    snapshot: Snapshot | None
    tried_at: datetime
    error: str = ""
    reading_since: datetime | None = None
    samples: tuple[tuple[datetime, Mapping[str, QueueNumbers]], ...] = ()

    @property
    def is_reachable(self) -> bool:
        return not self.trouble

    @property
    def trouble(self) -> str:
        """The error, and nothing while the broker is being read for the first time."""
        return "" if self.reading_since else self.error

    @property
    def slow_seconds(self) -> float:
        """How long the last poll took if that was long and it went well, else 0."""
        if self.error or self.snapshot is None or self.snapshot.poll_seconds <= SLOW_SECONDS:
            return 0.0
        return self.snapshot.poll_seconds


@dataclass(eq=False)
class _Poll:
    """A poll under way, `began` in monotonic seconds; its future holds what it found out.

    `after` is the one whose end it awaits, `follower` the one that awaits its own.
    """

    address: Address
    after: _Poll | None = None
    follower: _Poll | None = None
    management: Management | None = None
    began: float = field(default_factory=time.monotonic)
    future: Future[Latest] = field(default_factory=Future)

    def left(self, patience: float) -> float:
        """Seconds that remain of `patience`, never less than none."""
        return max(0.0, self.began + patience - time.monotonic())

    @property
    def is_lost(self) -> bool:
        heard = self.management.heard if self.management else None
        return time.monotonic() - max(self.began, heard or 0.0) > ABANDONED_SECONDS

    @property
    def is_answered(self) -> bool:
        """Whether the broker has answered to some of it."""
        if self.after is not None:
            return self.after.is_answered
        return self.management is not None and self.management.heard is not None


_latest: dict[int, Latest] = {}
_polls: dict[int, _Poll] = {}
_guard = threading.Lock()


def latest(broker_id: int) -> Latest | None:
    """What is known without asking the broker."""
    return _latest.get(broker_id)


def silent(brokers: Iterable[Broker]) -> list[Broker]:
    """The brokers that do not answer now, or did not within the last minute.

    Nobody waits for that: a poll is begun where nothing is known that is young enough, and one
    that takes too long is an answer too.
    """
    return [broker for broker in brokers if _is_silent(broker)]


def _is_silent(broker: Broker) -> bool:
    found = _known_or_poll(broker, POLLED_WITHIN)
    if isinstance(found, Latest):
        return bool(found.error)
    if found.is_answered:
        return False
    known = _latest.get(broker.pk)
    failed = bool(known and known.error and known.tried_at > datetime.now(UTC) - RECENT)
    return failed or not found.left(max(PATIENCE_SECONDS, _usual(known)))


def forget(broker_id: int) -> None:
    """Delete what is known of a broker whose address changed: numbers of another one must not be
    shown.
    """
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
    """The latest snapshot of each broker, read in parallel."""
    asked = [(broker, _known_or_poll(broker, max_age)) for broker in brokers]
    return [
        found if isinstance(found, Latest) else _outcome(broker, found, _patience(broker))
        for broker, found in asked
    ]


def poll(broker: Broker, patience: float = AFTERWARDS_SECONDS) -> Latest:
    """Look from now on, and wait so many seconds for it.

    A poll under way is no look from now on, and the broker is not polled twice at a time: another
    follows it. Never raises BrokerError: the failure is part of the result.
    """
    try:
        address = broker.address
    except BrokerError as error:
        return _store_failure(broker, error)
    with _guard:
        running = _current_poll(broker.pk, address)
        begun = _next_poll(broker.pk, running) if running else _begin(broker.pk, address)
    return _outcome(broker, begun, patience)


def for_action(broker: Broker, management: Management, objects: Iterable[BrokerObject]) -> Snapshot:
    """The snapshot that a change of these objects is planned on, with these objects read now.

    The rest is read too, unless reading the whole broker takes long: then it is at most a minute
    old. Raises BrokerError, also when the broker does not answer within ten seconds.
    """
    known = _latest.get(broker.pk)
    seen = known.snapshot if known else None
    with _guard:
        is_first = seen is None and _current_poll(broker.pk, broker.address) is not None
    if not is_first and (seen is None or seen.poll_seconds <= SLOW_SECONDS):
        return observe(management).without_interceptions()
    return refresh_objects(management, objects, recent(broker)).without_interceptions()


def recent(broker: Broker) -> Snapshot:
    """One that is a minute old at most. Raises BrokerError, after ten seconds at the latest."""
    known = _latest.get(broker.pk)
    seen = known.snapshot if known else None
    if seen is not None and datetime.now(UTC) - seen.taken_at < RECENT:
        return seen
    found = _known_or_poll(broker, FRESH)
    if isinstance(found, _Poll):
        try:
            found = found.future.result(ACTION_SECONDS)
        except TimeoutError as error:
            raise Unreachable(
                f"Delayboard is still reading the objects of {broker.name}. Try again in a minute."
            ) from error
    if found.snapshot is None or found.error:
        raise Unreachable(found.error)
    return found.snapshot


def _known_or_poll(broker: Broker, max_age: timedelta) -> Latest | _Poll:
    if known := _young(broker.pk, max_age):
        return known
    try:
        address = broker.address
    except BrokerError as error:
        return _store_failure(broker, error)
    with _guard:
        # Another's poll may have ended meanwhile.
        if known := _young(broker.pk, max_age):
            return known
        return _current_poll(broker.pk, address) or _begin(broker.pk, address)


def _answers(broker_id: int) -> bool:
    """Whether a poll is under way that the broker has answered some of."""
    running = _polls.get(broker_id)
    return running is not None and running.is_answered


def _young(broker_id: int, max_age: timedelta) -> Latest | None:
    known = _latest.get(broker_id)
    if known is None or (known.error and _answers(broker_id)):
        return None
    lasting = max(max_age, timedelta(seconds=REST * known.slow_seconds))
    return known if datetime.now(UTC) - known.tried_at < lasting else None


def _current_poll(broker_id: int, address: Address) -> _Poll | None:
    """Guarded. The poll under way; None too for one of another address, or that is lost."""
    running = _polls.get(broker_id)
    is_ours = running is not None and running.address == address and not running.is_lost
    return running if is_ours else None


def _begin(broker_id: int, address: Address) -> _Poll:
    """Guarded."""
    begun = _polls[broker_id] = _Poll(address)
    begun.future = run_in_background(
        lambda: _poll_broker(broker_id, begun), f"poll of {address.host}"
    )
    return begun


def _next_poll(broker_id: int, running: _Poll) -> _Poll:
    """The next poll, shared by all callers that arrive before it begins. Guarded by the lock."""
    if running.follower is None:
        follower = running.follower = _Poll(running.address, after=running)

        def follow() -> Latest:
            wait([running.future])
            follower.began, follower.after = time.monotonic(), None
            return _poll_broker(broker_id, follower)

        follower.future = run_in_background(follow, f"next poll of {running.address.host}")
    return running.follower


def _poll_broker(broker_id: int, poll: _Poll) -> Latest:
    """Poll, in the poll's thread. What a later poll or `forget` made void is not kept."""
    result = None
    try:
        with Management(poll.address) as management:
            poll.management = management
            result = _with_earlier(
                _latest.get(broker_id), observe(management).without_interceptions()
            )
    except BrokerError as error:
        result = _make_failed(broker_id, error)
    finally:
        with _guard:
            if _polls.get(broker_id) is poll:
                del _polls[broker_id]
                if poll.follower is not None:
                    _polls[broker_id] = poll.follower
                if result is not None:
                    _latest[broker_id] = result
    return result


def _with_earlier(known: Latest | None, snapshot: Snapshot) -> Latest:
    """The snapshot with the oldest numbers that are young enough to compare it with.

    What is declared as before is the same object: whoever compares it again need not look inside.
    """
    if known and (before := known.snapshot):
        declared, definitions = before.declared, before.definitions
        snapshot = replace(
            snapshot,
            numbers=dict(_with_still_ms(before, snapshot)),
            declared=declared if declared == snapshot.declared else snapshot.declared,
            definitions=definitions
            if definitions == snapshot.definitions
            else snapshot.definitions,
        )
    at = snapshot.taken_at
    samples = tuple(one for one in (known.samples if known else ()) if at - one[0] <= TREND)
    if samples:
        earlier_at, numbers = samples[0]
        snapshot = replace(snapshot, earlier=numbers, earlier_at=earlier_at)
    if not samples or at - samples[-1][0] >= SAMPLES_APART:
        samples = (*samples, (at, snapshot.numbers))
    return Latest(snapshot, datetime.now(UTC), samples=samples)


def _with_still_ms(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, QueueNumbers]]:
    """The numbers of each queue, with how long its process has done nothing."""
    passed_ms = (now.taken_at - before.taken_at) // timedelta(milliseconds=1)
    for name, numbers in now.numbers.items():
        earlier = before.numbers.get(name)
        is_still = earlier is not None and earlier.reductions == numbers.reductions is not None
        if earlier is not None and is_still and numbers.messages:
            yield name, replace(numbers, still_ms=earlier.still_ms + passed_ms)
        else:
            yield name, numbers


def _outcome(broker: Broker, poll: _Poll, patience: float) -> Latest:
    try:
        return poll.future.result(poll.left(patience))
    except TimeoutError:
        known = _latest.get(broker.pk)
        if known is not None and poll.left(_usual(known)):
            return known
        if poll.is_answered and (known is None or known.snapshot is None):
            now = datetime.now(UTC)
            spent = timedelta(seconds=max(1, int(time.monotonic() - poll.began)))
            sentence = (
                f"The broker answers. The first read is in progress (so far {format_span(spent)})."
            )
            return Latest(None, now, sentence, reading_since=now - spent)
        asked = poll.management.node if poll.management else poll.address
        return _make_failed(broker.pk, explain_timeout(asked))


def _usual(known: Latest | None) -> float:
    """Seconds up to which a poll of a slow broker is on its way and not late; else 0."""
    return LATER_THAN_EVER * known.slow_seconds if known else 0.0


def _patience(broker: Broker) -> float:
    known = _latest.get(broker.pk)
    if known and known.slow_seconds > PATIENCE_SECONDS:
        return 0.0
    return SHORT_PATIENCE_SECONDS if known and known.error else PATIENCE_SECONDS


def _store_failure(broker: Broker, error: BrokerError) -> Latest:
    result = _latest[broker.pk] = _make_failed(broker.pk, error)
    return result


def _make_failed(broker_id: int, error: BrokerError) -> Latest:
    now = datetime.now(UTC)
    return replace(_latest.get(broker_id) or Latest(None, now), tried_at=now, error=str(error))
