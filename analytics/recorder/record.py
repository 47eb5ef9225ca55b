"""Records one topology's tap: batch -> log on disk -> index and minutes -> ack.

Nothing is acknowledged before it is both in the log and in the database, so a crash makes
the broker deliver the batch again: a copy may be recorded twice, never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from threading import Event
from time import monotonic
from typing import TypeAlias
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, transaction

from analytics import minutes, scheduled
from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.recorder import gaps
from analytics.recorder.backlog import Backlog
from analytics.recorder.copies import Place, event_of_copy
from topology.broker.consumer import Consumer, Delivery
from topology.broker.errors import NotFound
from topology.models import Topology
from topology.patterns.pattern import Copy, Reading

BATCH = 1000
# Copies go on coming while a batch is put away.
PREFETCH = 3 * BATCH
BATCH_BYTES = 16 * 1024 * 1024
WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
IDLE_BEAT_SECONDS = 3.0

Beat: TypeAlias = Callable[[Mapping[str, object]], None]
logger = logging.getLogger(__name__)


class RecordingFailed(Exception):
    """A batch could not be put away and was not acknowledged; the message says why."""


def record(topology_id: int, *, stop: Event, beat: Beat) -> None:
    """Record the tap of this topology until `stop` is set.

    `beat` gets the counters after every batch, and every few seconds without one: recorded,
    unknown (copies that are none of the pattern's, kept out), caught_up, last_at. Raises
    BrokerError, LogError and RecordingFailed, each a sentence; calling again goes on.
    """
    topology = Topology.objects.select_related("broker").get(pk=topology_id)
    log = EventLog(settings.EVENT_LOG, f"tap.{topology.slug}.{uuid4().hex[:8]}")
    suspicion = gaps.before_reading(topology)
    try:
        with Consumer(topology.broker.address, topology.tap_queue, prefetch=PREFETCH) as consumer:
            gaps.note(topology, suspicion)
            _follow(consumer, Recorder(topology, log), stop, beat)
    except NotFound:
        gaps.tap_is_absent(topology)
        raise
    finally:
        log.close()


def _follow(consumer: Consumer, recorder: Recorder, stop: Event, beat: Beat) -> None:
    beaten = 0.0
    while not stop.is_set():
        deliveries = consumer.batch(
            limit=BATCH, limit_bytes=BATCH_BYTES, wait=WAIT_SECONDS, linger=LINGER_SECONDS
        )
        recorder.backlog.take(is_full=_is_full(deliveries))
        if deliveries:
            recorder.put_away(deliveries)
            consumer.ack_through(deliveries[-1])
        if deliveries or monotonic() - beaten > IDLE_BEAT_SECONDS:
            beaten = monotonic()
            gaps.was_read(recorder.topology)
            beat(recorder.counters())


def _is_full(deliveries: Sequence[Delivery]) -> bool:
    """Whether more may have waited: by number, or by what the limit of bytes left behind."""
    size = sum(len(delivery.message.body) for delivery in deliveries)
    return len(deliveries) >= BATCH or size > BATCH_BYTES // 2


class Recorder:
    """Puts batches of one topology's copies into the log and the database."""

    def __init__(self, topology: Topology, log: EventLog) -> None:
        self.topology = topology
        self.backlog = Backlog()
        self._log = log
        self._place = Place(
            topology.broker.slug, topology.broker.vhost, topology.slug, topology.kind
        )
        self._params = topology.parsed
        self._run = uuid4().hex[:12]
        self._numbers = count(1)
        self._recorded = self._unknown = 0
        self._last_at: datetime | None = None

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        """Record a batch. Raises LogError and RecordingFailed; then nothing may be acked."""
        read = [self._event(delivery) for delivery in deliveries]
        events = [event for event in read if event is not None]
        self._log.append(events)
        try:
            with transaction.atomic():
                index(self.topology, events)
        except DatabaseError as error:
            raise RecordingFailed(
                f"The database did not take what the tap of {self.topology.slug} copied: {error}. "
                "The copies stay in the tap."
            ) from error
        self._recorded += len(events)
        self._unknown += len(deliveries) - len(events)
        self._last_at = deliveries[-1].received_at

    def counters(self) -> dict[str, object]:
        return {
            "recorded": self._recorded,
            "unknown": self._unknown,
            "caught_up": self.backlog.is_caught_up,
            "last_at": self._last_at.isoformat() if self._last_at else "",
        }

    def _event(self, delivery: Delivery) -> MessageEvent | None:
        reading = self._reading(delivery)
        if reading is None:
            return None
        return event_of_copy(
            delivery.message,
            reading,
            self._place,
            event_id=f"{self._run}:{next(self._numbers)}",
            recorded_at=delivery.received_at.astimezone(UTC),
            caught_up=self.backlog.is_caught_up,
        )

    def _reading(self, delivery: Delivery) -> Reading | None:
        message = delivery.message
        copy = Copy(
            message.exchange, message.routing_key, message.headers, message.properties.expiration
        )
        try:
            return self.topology.pattern.read(self._params, copy)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
            # One copy with headers that no pattern foresaw must not stop the tap for good.
            logger.exception("The tap of %s holds an unreadable copy.", self.topology.slug)
            return None


def index(topology: Topology, events: Sequence[MessageEvent]) -> None:
    """Bring the scheduled messages and the minutes up to these events."""
    fresh = scheduled.without_repeats(topology, events)
    closed = scheduled.project(topology, fresh)
    minutes.count(topology, fresh, closed)
