"""Records a vhost's firehose: copy -> log on disk -> ack.

Nothing is acknowledged before it is in the log, so a crash loses nothing that was copied; what
was read and not acknowledged is recorded again, marked as redelivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import count
from threading import Event
from time import monotonic
from uuid import uuid4

from django.conf import settings

from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.models import Firehose
from analytics.observation import on_the_firehose, untapped
from analytics.recorder.backlog import Backlog
from analytics.recorder.copies import STORED_BODY_BYTES
from analytics.recorder.firehose.switch import tap_of
from analytics.recorder.firehose.traces import (
    Trace,
    Watched,
    event_of_trace,
    find_failure_queues,
    is_own,
    read_trace,
)
from analytics.recorder.firehose.watch import Watch
from analytics.recorder.record import Beat
from analytics.scheduled.queries.not_observed import settle
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.database.optional_writes import try_write
from topology.models import Broker
from topology.snapshot import version_numbers

# Called with a broker's id and queues to which failed messages were published.
NoteFailures = Callable[[int, Collection[str]], None]
BATCH = 1000
PREFETCH = 3 * BATCH
BATCH_BYTES = 16 * 1024 * 1024
WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
IDLE_BEAT_SECONDS = 1.0
TOPOLOGIES_SECONDS = 1.0
# Before 4.0, RabbitMQ continues an x-death that a client publishes.
FIRST_WITH_OWN_DEATHS = (4, 0)


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
    beaten = 0.0
    while not stop.is_set():
        deliveries = consumer.batch(
            limit=BATCH, limit_bytes=BATCH_BYTES, wait=WAIT_SECONDS, linger=LINGER_SECONDS
        )
        recorder.put_away(deliveries)
        if deliveries:
            consumer.ack(through=deliveries[-1].tag)
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
        self._backlog = Backlog()
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
        size = sum(len(delivery.message.body) for delivery in deliveries)
        self._backlog.take(is_full=len(deliveries) >= BATCH or size > BATCH_BYTES // 2)
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
            "caught_up": self._backlog.is_caught_up,
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
            caught_up=self._backlog.is_caught_up,
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
