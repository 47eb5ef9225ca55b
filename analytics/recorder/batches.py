"""Puts away what was read of a tap: into the log, then how far that was into the database."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import count
from uuid import uuid4

from django import db
from django.db import transaction

from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.models import Recording
from analytics.recorder import gaps
from analytics.recorder.copies import STORED_BODY_BYTES, UNFORESEEN, Place, event_of_copy
from analytics.recorder.gaps import Overflow
from analytics.recorder.shared_rows import shared
from topology.broker.amqp.frames import Delivery
from topology.definitions import is_probe
from topology.models import Topology
from topology.structure.copies import Copy

logger = logging.getLogger(__name__)
STREAM_DROPPED = "The stream tap was full and dropped unread copies."


class RecordingFailed(Exception):
    """A batch could not be stored and was not acknowledged; the message says why."""


def refused(topology: Topology, error: db.Error) -> RecordingFailed:
    return RecordingFailed(
        f"The database did not accept the copies of the tap of {topology.slug}: {error}. The "
        "copies remain in the tap."
    )


class Recorder:
    """Puts batches of one topology's copies into the log."""

    def __init__(self, topology: Topology, log: EventLog, *, may_repeat: bool = False) -> None:
        """`may_repeat`: its copies may be recorded already, from the tap that it replaced."""
        self.topology = topology
        self.may_repeat = may_repeat
        self._overflow = Overflow(topology)
        self.is_caught_up = False
        self.is_large = False
        """Of the batch to come: its copies may have waited for room in a socket."""
        self._log = log
        self._place = Place(
            topology.broker.slug, topology.broker.vhost, topology.slug, topology.kind
        )
        self._params = topology.parsed
        self._run = uuid4().hex[:12]
        self._numbers = count(1)
        self._recorded = self._unknown = 0
        self._last_at: datetime | None = None

    def watch(self, *, is_behind: bool) -> None:
        """A batch was taken, or nothing came: see whether the tap loses copies."""
        self._overflow.step(is_behind=is_behind)

    def put_away(self, deliveries: Sequence[Delivery]) -> None:
        """Record a batch. Raises LogError and RecordingFailed; then nothing may be acked."""
        if self.may_repeat:
            for delivery in deliveries:
                delivery.mark_redelivered()
        self._log.append(self._events(deliveries))
        try:
            self._commit(deliveries)
        except db.Error as error:
            raise refused(self.topology, error) from error
        self._last_at = deliveries[-1].received_at

    def refresh(self) -> bool:
        """Read again what an operator may change; False when it takes another recorder."""
        now = shared.read(self.topology.pk)
        if now is None:
            return False
        self.topology.keep_bodies = now.keep_bodies
        is_same_tap = now.retired_tap == self.topology.retired_tap
        return is_same_tap and now.params == self.topology.params

    def mark_read(self) -> None:
        """Nothing waits that was copied before now."""
        shared.mark_read(self.topology.pk)

    def counters(self) -> dict[str, object]:
        return {
            "tap": self.topology.tap_type or "classic",
            "recorded": self._recorded,
            "unknown": self._unknown,
            "caught_up": self.is_caught_up,
            "last_at": self._last_at.isoformat() if self._last_at else "",
        }

    def _commit(self, deliveries: Sequence[Delivery]) -> None:
        """Write down in the database how far the tap was read."""

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
            copy = _copy_of(delivery)
            reading = self.topology.pattern.read(self._params, copy)
            if reading is None:
                return None
            return event_of_copy(
                delivery.message,
                reading,
                self._place,
                event_id=f"{self._run}:{next(self._numbers)}",
                recorded_at=delivery.received_at,
                caught_up=not (self.is_large or delivery.has_waited),
                history=copy.history,
                keep_bytes=keep_bytes,
            )
        except UNFORESEEN:
            # One copy with headers that nobody foresaw must not stop the tap for good.
            logger.exception("The tap of %s holds an unreadable copy.", self.topology.slug)
            return None


class StreamRecorder(Recorder):
    """Puts away the rest of a stream tap that an earlier version made; acks take nothing out of it.

    The offset of the last recorded copy is written down after the copies, so that a crash between
    repeats them, marked.
    """

    def __init__(self, topology: Topology, log: EventLog) -> None:
        super().__init__(topology, log, may_repeat=True)

    def watch(self, *, is_behind: bool) -> None:
        """Nothing enters it any more, and its offsets show what it has dropped."""

    def mark_read(self) -> None:
        """Mark the tap as read. Only a copy shows what was dropped before it, and since when."""

    def _commit(self, deliveries: Sequence[Delivery]) -> None:
        first, last = offset_of(deliveries[0]), offset_of(deliveries[-1])
        recording = Recording.objects.get(topology=self.topology)
        with transaction.atomic():
            # A single missing offset is no copy: a segment begins with a note of the stream's own
            # (osiris, as of 4.0.5 and 4.3.6).
            if (missing := first - recording.offset - 1) > 1:
                gaps.write(self.topology, recording.read_at, gaps.Loss(STREAM_DROPPED, missing))
            recording.offset, recording.read_at = last, deliveries[-1].received_at
            recording.save(update_fields=["offset", "read_at"])


def _copy_of(delivery: Delivery) -> Copy:
    message = delivery.message
    return Copy(
        message.exchange,
        message.routing_key,
        message.headers,
        message.properties.expiration,
        int(delivery.received_at.timestamp() * 1000),
        message.body,
    )


def offset_of(delivery: Delivery) -> int:
    assert delivery.offset is not None, "a stream numbers its messages"
    return delivery.offset
