"""Records a vhost's firehose: copy -> log on disk -> ack.

Nothing is acknowledged before it is in the log, so a crash loses nothing that was copied; what
was read and not acknowledged is recorded again, marked as redelivered. RabbitMQ disables the
firehose at a restart, and anybody may disable it: so its state is read every few seconds, in
parallel, and missing objects are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from threading import Event
from time import monotonic
from uuid import uuid4

from django.conf import settings
from django.db import connection

from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.models import Firehose, Gap
from analytics.observation import on_the_firehose, untapped
from analytics.recorder.copies import STORED_BODY_BYTES
from analytics.recorder.firehose_switch import fill, tap_of
from analytics.recorder.held_up import pulse
from analytics.recorder.record import BATCH_BYTES, Beat, is_large
from analytics.recorder.traces import (
    Trace,
    Watched,
    event_of_trace,
    find_failure_queues,
    is_own,
    read_trace,
)
from analytics.scheduled.projection import settle
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.time_limit import run_in_background
from topology.database.errors import try_write
from topology.models import Broker
from topology.models.read_only import finishing
from topology.provisioning import firehose
from topology.snapshot import version_numbers

# Function that gets a broker's id and the queues to which failed messages were published.
NoteFailures = Callable[[int, Collection[str]], None]
BATCH = 1000
PREFETCH = 3 * BATCH
WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
IDLE_BEAT_SECONDS = 1.0
TOPOLOGIES_SECONDS = 1.0
# First version in which RabbitMQ does not continue an x-death that a client publishes.
FIRST_WITH_OWN_DEATHS = (4, 0)

CHECK_SECONDS = 3.0
FULL = 90
RETENTION = timedelta(milliseconds=firehose.KEPT_MS)

NOT_COPYING = (
    "RabbitMQ made no firehose copies. RabbitMQ restarted, or someone disabled the firehose "
    "or deleted its queue."
)
DROPPED = "The recorder read the firehose too slowly. The queue was full and dropped copies."
OUTDATED = "The recorder did not read the firehose, whose queue drops copies older than an hour."
BEFORE = "The firehose queue was dropping copies when the recorder stopped."


def record_firehose(
    broker_id: int, note_failures: NoteFailures, *, stop: Event, beat: Beat
) -> None:
    """Record the firehose of this broker until `stop` is set or recording is disabled.

    `beat` receives the counters after every batch, and every second without one: recorded, unknown
    (not a copy made by RabbitMQ), caught_up, full (hundredths of the queue's maximum length),
    trouble (why it cannot be kept on), last_at. Raises BrokerError and LogError; another call
    continues.
    """
    row = Firehose.objects.select_related("broker").filter(broker=broker_id).first()
    if row is None:
        return
    address = row.broker.address
    if row.read_at is None:
        settle(on_the_firehose(row.broker), row.switched_on_at)
    watch = Watch(row)
    watch.begin()
    recorder = FirehoseRecorder(row.broker, note_failures)
    try:
        with Consumer(address, tap_of(row), prefetch=PREFETCH) as consumer:
            _follow(consumer, recorder, watch, stop, beat)
    finally:
        recorder.close()


def _follow(
    consumer: Consumer, recorder: FirehoseRecorder, watch: Watch, stop: Event, beat: Beat
) -> None:
    pulse.begin()
    beaten, looked_at = 0.0, monotonic()
    while not stop.is_set():
        deliveries = consumer.batch(
            limit=BATCH, limit_bytes=BATCH_BYTES, wait=WAIT_SECONDS, linger=LINGER_SECONDS
        )
        since, looked_at = looked_at, monotonic()
        if pulse.was_held_up(since):
            consumer.doubt(deliveries)
        recorder.is_caught_up = consumer.is_caught_up
        recorder.put_away(deliveries)
        if deliveries:
            consumer.ack(through=deliveries[-1].tag)
        consumer.find_backlog()
        watch.step()
        if deliveries or monotonic() - beaten > IDLE_BEAT_SECONDS:
            beaten = monotonic()
            watch.was_read()
            last = watch.last
            beat(recorder.counters() | {"full": last.full, "trouble": last.trouble or None})


class FirehoseRecorder:
    """Puts batches of copies into the log."""

    def __init__(self, broker: Broker, note_failures: NoteFailures) -> None:
        self._broker = broker
        self._note_failures = note_failures
        self._failure_queues = set[str]()
        self.is_caught_up = self._is_large = False
        self._run = uuid4().hex[:12]
        self._numbers = count(1)
        self._log = EventLog(settings.EVENT_LOG, f"firehose.{broker.slug}.{self._run[:8]}")
        self._watched: list[Watched] = []
        self._pending = float("-inf")
        self._recorded = self._unknown = 0
        self._last_at: datetime | None = None
        with Management(broker.address) as management:
            version = str(management.overview().get("rabbitmq_version", ""))
        self._keeps_deaths = version_numbers(version) < FIRST_WITH_OWN_DEATHS

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        """Record a batch, an empty one too. Raises LogError; then nothing may be acked."""
        self._is_large = is_large(deliveries)
        if monotonic() - self._pending > TOPOLOGIES_SECONDS:
            self._pending = monotonic()
            self._watched = watched_of(self._broker)
        foreign = [delivery for delivery in deliveries if not is_own(delivery.message)]
        traces = [(delivery, read_trace(delivery.message)) for delivery in foreign]
        events = [self._event(delivery, trace) for delivery, trace in traces if trace]
        failed = {queue for _, trace in traces if trace for queue in find_failure_queues(trace)}
        if events:
            self._log.append(events)
            self._last_at = events[-1].recorded_at
        # The lines are in the log: what fails from here on would record the batch again.
        if (new := failed - self._failure_queues) and try_write(
            "queues with failed messages", lambda: self._note_failures(self._broker.pk, new)
        ):
            self._failure_queues |= new
        self._recorded += len(events)
        self._unknown += len(foreign) - len(events)

    def counters(self) -> dict[str, object]:
        return {
            "recorded": self._recorded,
            "unknown": self._unknown,
            "caught_up": self.is_caught_up,
            "last_at": self._last_at.isoformat() if self._last_at else "",
        }

    def close(self) -> None:
        self._log.close()

    def _event(self, delivery: Delivery, trace: Trace) -> MessageEvent:
        return event_of_trace(
            trace,
            self._watched,
            broker=self._broker.slug,
            vhost=self._broker.vhost,
            event_id=f"{self._run}:{next(self._numbers)}",
            recorded_at=delivery.received_at.astimezone(UTC),
            caught_up=not (self._is_large or delivery.has_waited),
            keeps_deaths=self._keeps_deaths,
        )


def watched_of(broker: Broker) -> list[Watched]:
    """The topologies with events that only the firehose shows, because none of their taps does."""
    return [
        Watched(
            topology.slug,
            topology.pattern,
            topology.parsed,
            untapped(topology),
            STORED_BODY_BYTES if topology.keep_bodies else -1,
            topology.tapped_destinations,
        )
        for topology in on_the_firehose(broker)
    ]


@dataclass(frozen=True)
class FirehoseState:
    """`why` copies are lost, "" when none are; `trouble` is why this could not be fixed.

    `full` is the share of our queue's maximum length in hundredths, None when not reported.
    """

    why: str
    trouble: str
    full: int | None


def keep_copying(address: Address, tap: str, is_wanted: Callable[[], bool]) -> FirehoseState:
    """Read the state and restore what is missing. Raises BrokerError when the broker is silent.

    After a user disabled it meanwhile, nothing is left in the broker.
    """
    with Management(address) as management:
        try:
            _, full = fill(management.queue(tap))
            why = "" if firehose.is_copying(management, tap) else NOT_COPYING
        except NotFound:
            why, full = NOT_COPYING, None
        if not why:
            return FirehoseState(DROPPED if (full or 0) >= FULL else "", "", full)
        try:
            firehose.keep_on(management, tap)
            if not is_wanted():
                firehose.switch_off(management, tap)
        except BrokerError as error:
            return FirehoseState(why, str(error), full)
        return FirehoseState(why, "", full)


class Watch:
    """Looks at one firehose again and again; used by its recorder's thread."""

    def __init__(self, row: Firehose) -> None:
        self.last = FirehoseState("", "", None)
        self._row = row
        is_wanted = Firehose.objects.filter(pk=row.pk).exists
        self._keep = partial(keep_copying, row.broker.address, tap_of(row), is_wanted)
        self._sure_at = row.read_at or row.switched_on_at
        self._pending: Future[FirehoseState] | None = None
        self._checked_at = 0.0
        self._why = BEFORE if row.lost_since else ""

    def begin(self) -> None:
        """Before reading, which empties the queue. Raises BrokerError when it cannot be kept on."""
        found = self._call()
        if not found.why and datetime.now(UTC) - self._sure_at > RETENTION:
            self._lose(OUTDATED)
        self._take(found)
        if found.trouble:
            raise BrokerError(found.trouble)
        self.was_read()

    def step(self) -> None:
        """Begin a look when it is time, take up the answer of one that was begun."""
        if self._pending is None:
            if monotonic() - self._checked_at > CHECK_SECONDS:
                self._pending = run_in_background(self._check_in_background, "check the firehose")
            return
        if not self._pending.done():
            return
        asked, self._pending, self._checked_at = self._pending, None, monotonic()
        try:
            self._take(asked.result())
        except BrokerError as error:
            self.last = FirehoseState(self.last.why, str(error), None)

    def _check_in_background(self) -> FirehoseState:
        try:
            return self._call()
        finally:
            connection.close()

    def _call(self) -> FirehoseState:
        """A recording that is on stays on where changes are refused."""
        with finishing():
            return self._keep()

    def was_read(self) -> None:
        self._row.read_at = datetime.now(UTC)
        Firehose.objects.filter(pk=self._row.pk).update(read_at=self._row.read_at)

    def _take(self, found: FirehoseState) -> None:
        self.last = found
        if found.why:
            self._lose(found.why)
        is_put_right = not found.trouble and found.why != DROPPED
        if self._row.lost_since and is_put_right:
            self._note(self._row.lost_since)
        if is_put_right:
            self._sure_at = datetime.now(UTC)

    def _lose(self, why: str) -> None:
        self._why = why
        if self._row.lost_since is None:
            self._row.lost_since = self._sure_at
            Firehose.objects.filter(pk=self._row.pk).update(lost_since=self._sure_at)

    def _note(self, lost_since: datetime) -> None:
        now = datetime.now(UTC)
        Gap.objects.bulk_create(
            Gap(topology=topology, from_at=lost_since, until_at=now, why=self._why)
            for topology in on_the_firehose(self._row.broker)
        )
        self._row.lost_since = None
        Firehose.objects.filter(pk=self._row.pk).update(lost_since=None)
