"""Puts away what was read of a tap: into the log, then how far that was into the database."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from time import monotonic
from uuid import uuid4

from django import db

from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.recorder import streams
from analytics.recorder.backlog import Backlog
from analytics.recorder.copies import STORED_BODY_BYTES, UNFORESEEN, Place, event_of_copy
from analytics.recorder.overflow import Overflow
from topology.broker.amqp.consumer import Delivery
from topology.definitions import is_probe
from topology.models import Topology
from topology.structure.copies import Copy, Reading

logger = logging.getLogger(__name__)


class RecordingFailed(Exception):
    """A batch could not be stored and was not acknowledged; the message says why."""


def refused(topology: Topology, error: db.Error) -> RecordingFailed:
    return RecordingFailed(
        f"The database did not accept the copies of the tap of {topology.slug}: {error}. The "
        "copies remain in the tap."
    )


class Recorder:
    """Puts batches of one topology's copies into the log."""

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

    @property
    def is_sure(self) -> bool:
        """Whether what is read is what was read before."""
        return True

    def doubt(self) -> None:
        """Nothing came, and it is not sure yet."""

    def watch(self, *, is_behind: bool) -> None:
        """A batch was taken, or nothing came: see whether the tap loses copies."""

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        """Record a batch. Raises LogError and RecordingFailed; then nothing may be acked."""
        self._log.append(self._events(deliveries))
        try:
            self._commit(deliveries)
        except db.Error as error:
            raise refused(self.topology, error) from error
        self._last_at = deliveries[-1].received_at

    def refresh(self) -> bool:
        """Read again what an operator may change; False when it takes another recorder."""
        now = Topology.objects.get(pk=self.topology.pk)
        self.topology.keep_bodies = now.keep_bodies
        is_same_tap = now.retired_tap == self.topology.retired_tap
        return is_same_tap and now.params == self.topology.params

    def counters(self) -> dict[str, object]:
        return {
            "tap": self.topology.tap_type or "classic",
            "recorded": self._recorded,
            "unknown": self._unknown,
            "caught_up": self.backlog.is_caught_up,
            "last_at": self._last_at.isoformat() if self._last_at else "",
        }

    def _commit(self, deliveries: Sequence[Delivery]) -> None:
        """Write down in the database how far the tap was read."""

    def _event_id(self, delivery: Delivery) -> str:
        return f"{self._run}:{next(self._numbers)}"

    def _events(self, deliveries: Sequence[Delivery]) -> Iterator[MessageEvent]:
        keep_bytes = STORED_BODY_BYTES if self.topology.keep_bodies else -1
        for delivery in deliveries:
            event = self._event(delivery, keep_bytes)
            if event is None:
                self._unknown += 1
                continue
            if is_probe(event.destination):
                # Its own task records it.
                continue
            self._recorded += 1
            yield event

    def _event(self, delivery: Delivery, keep_bytes: int) -> MessageEvent | None:
        try:
            reading = self._reading(delivery)
            if reading is None:
                return None
            return event_of_copy(
                delivery.message,
                reading,
                self._place,
                event_id=self._event_id(delivery),
                recorded_at=delivery.received_at,
                caught_up=self.backlog.is_caught_up,
                keep_bytes=keep_bytes,
            )
        except UNFORESEEN:
            # One copy with headers that nobody foresaw must not stop the tap for good.
            logger.exception("The tap of %s holds an unreadable copy.", self.topology.slug)
            return None

    def _reading(self, delivery: Delivery) -> Reading | None:
        message = delivery.message
        copy = Copy(
            message.exchange,
            message.routing_key,
            message.headers,
            message.properties.expiration,
            int(delivery.received_at.timestamp() * 1000),
            message.body,
        )
        return self.topology.pattern.read(self._params, copy)


class QueueRecorder(Recorder):
    """Puts away batches of a queue, which drops what it has no room for without a word."""

    def __init__(self, topology: Topology, log: EventLog, *, may_repeat: bool = False) -> None:
        """`may_repeat`: its copies may be recorded already, from the stream that it replaced."""
        super().__init__(topology, log)
        self.may_repeat = may_repeat
        self._overflow = Overflow(topology)

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        if self.may_repeat:
            deliveries = [
                replace(one, message=replace(one.message, redelivered=True)) for one in deliveries
            ]
        super().put_away(deliveries)

    def watch(self, *, is_behind: bool) -> None:
        self._overflow.step(is_behind=is_behind)


class StreamRecorder(Recorder):
    """Stores batches of a stream, from its position on; known copies are skipped."""

    def __init__(self, topology: Topology, log: EventLog, position: streams.Position) -> None:
        super().__init__(topology, log)
        self.position = position
        self._silent_since = monotonic()

    @property
    def is_sure(self) -> bool:
        return self.position.is_verified

    def doubt(self) -> None:
        """Look whether the stream ends before our position. Raises StreamReplaced, BrokerError."""
        if monotonic() - self._silent_since < streams.SILENCE_SECONDS:
            return
        self._silent_since = monotonic()
        streams.check_reach(self.position)

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        """Record a batch. Raises LogError, RecordingFailed, StreamReplaced and NotAlone."""
        fresh = self.position.fresh(deliveries)
        if fresh:
            try:
                streams.check_alone(self.position)
                streams.note_leaps(self.position, fresh)
            except db.Error as error:
                raise refused(self.topology, error) from error
            super().put_away(fresh)
            self.position = self.position.after(fresh)
        self.position = replace(self.position, is_verified=True)

    def _commit(self, deliveries: Sequence[Delivery]) -> None:
        streams.advance(self.position, self.position.after(deliveries))

    def _event_id(self, delivery: Delivery) -> str:
        return self.position.event_id(delivery)
