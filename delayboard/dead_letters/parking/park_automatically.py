"""Parks new dead letters of a queue automatically."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from threading import Event
from time import monotonic

from django import db

from delayboard.dead_letters.parking.consume import Taking, opened
from delayboard.dead_letters.parking.in_flight_limit import BATCH_BYTES, limits_of
from delayboard.dead_letters.parking.store_batch import ParkingWriter, SpaceCheck, forget_connection
from delayboard.models import DeadLetterQueue
from delayboard.models.background_task import Beat
from topology.broker.amqp.consumer import Consumer
from topology.models.read_only import refuse_read_only

WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
BEAT_SECONDS = 0.5


def park_automatically(queue_id: int, *, stop: Event, beat: Beat, space: SpaceCheck) -> None:
    """Park new messages of a queue until `stop` is set.

    `beat` receives stored and repeated counts (of this connection), last_at and problems, about
    twice a second. Raises BrokerError and StoreFailed, each with a sentence; another call
    continues. `space` is the same for all calls.
    """
    row = DeadLetterQueue.objects.select_related("broker", "watched_by").get(pk=queue_id)
    refuse_read_only(row.broker_id)
    space.check()
    limits = limits_of(row.broker, row.queue)
    consumer = Consumer(row.broker.address, row.queue, prefetch=limits.prefetch)
    with opened(row.broker, row.queue, by=row.watched_by) as session, consumer:
        writer = ParkingWriter(session, space)
        taking = Taking(consumer, writer, limits)
        last_at = ""
        beaten = 0.0
        with taking.closing():
            while not stop.is_set():
                deliveries = consumer.batch(
                    limit=limits.batch,
                    limit_bytes=BATCH_BYTES,
                    wait=WAIT_SECONDS,
                    linger=LINGER_SECONDS,
                )
                if deliveries:
                    taking.store(
                        deliveries, stop=stop, report=partial(_report, beat, writer, last_at)
                    )
                    last_at = datetime.now(UTC).isoformat()
                taking.confirm_acks()
                if monotonic() - beaten > BEAT_SECONDS:
                    beaten = monotonic()
                    _report(beat, writer, last_at, "")
                    refuse_read_only(row.broker_id)


def _report(beat: Beat, writer: ParkingWriter, last_at: str, trouble: str) -> None:
    """A database that takes nothing takes no beat either, perhaps."""
    try:
        beat(
            {
                "parked": writer.stored,
                "repeats": writer.repeats,
                "last_at": last_at,
                "trouble": trouble,
            }
        )
    except db.Error:
        with suppress(db.Error):
            forget_connection()
