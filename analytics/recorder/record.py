"""Records one topology's tap: batch -> log on disk -> ack.

Nothing is acknowledged before it is in the log, so a crash makes the broker deliver the batch
again. From a queue a copy may then be recorded twice, never lost;
a copy of a stream has an identity, and is recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event
from time import monotonic
from typing import TypeAlias
from uuid import uuid4

from django import db
from django.conf import settings

from analytics.log import EventLog, take_lock
from analytics.models import Recording
from analytics.recorder import gaps, pressure, retired_taps, streams
from analytics.recorder.batches import (
    QueueRecorder,
    Recorder,
    RecordingFailed,
    StreamRecorder,
    refused,
)
from analytics.scheduled.queries.not_observed import settle_one
from topology.broker.amqp.consumer import Consumer, Delivery, Start
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.models import Topology
from topology.operations.replace_tap import read_taps

__all__ = ["Beat", "RecordingFailed", "record"]


class RetiredTapMissing(Exception):
    """Somebody deleted a retired tap before it was read to its end."""


# Each batch costs a sync of the disk and a transaction, however many copies it has. Of a queue,
# what came and is not acknowledged is recorded again after a crash: of a stream nothing is.
BATCH, STREAM_BATCH = 1000, 4000
# Copies go on coming while a batch is put away.
PREFETCH, STREAM_PREFETCH = 3 * BATCH, 3 * STREAM_BATCH
BATCH_BYTES = 16 * 1024 * 1024
WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
# By so much longer takes a batch when the process, or the machine under it, was stopped.
DELAYED_SECONDS = 0.25
BEAT_SECONDS = 0.5
# So long the new tap is read before a retired one whose node is down is looked for again.
AGAIN_SECONDS = 10.0
LOCKED_WAIT_SECONDS = 0.2

Beat: TypeAlias = Callable[[Mapping[str, object]], None]


def record(topology_id: int, *, stop: Event, beat: Beat) -> None:
    """Record the tap of this topology until `stop` is set.

    `beat` receives the counters about once a second: tap (its type), recorded, unknown (copies that
    do not match the pattern, excluded), caught_up, last_at. Raises BrokerError, LogError and
    RecordingFailed, each with a sentence; another call continues.
    """
    _settle_not_observed(_load_topology(topology_id))
    while not stop.is_set():
        topology = _load_topology(topology_id)
        kind = _next_type(topology)
        if kind == "":
            retired_taps.close_absent(topology)
        elif kind == retired_taps.DOWN:
            _record_queue(topology, stop, beat, until=monotonic() + AGAIN_SECONDS)
        elif kind != "stream":
            _record_queue(topology, stop, beat)
        else:
            _record_stream_alone(topology, stop, beat)


def _next_type(topology: Topology) -> str:
    """That of the tap to read now: of a retired one as `find_type` has it. Raises BrokerError."""
    return retired_taps.find_type(topology) if topology.retired_tap else topology.tap_type


def _record_stream_alone(topology: Topology, stop: Event, beat: Beat) -> None:
    """Only one may write a stream's lines: another's would be the same ones again."""
    with take_lock(settings.EVENT_LOG, f"tap.{topology.slug}") as is_ours:
        # Who held it before may have read a retired stream to its end.
        now = _load_topology(topology.pk)
        if is_ours and now.retired_tap == topology.retired_tap:
            _record_stream(now, stop, beat)
    if not is_ours:
        stop.wait(LOCKED_WAIT_SECONDS)


def _load_topology(topology_id: int) -> Topology:
    return Topology.objects.select_related("broker").get(pk=topology_id)


def _settle_not_observed(topology: Topology) -> None:
    """One that was adopted may have had messages of ours in it before it was tapped."""
    is_first = not Recording.objects.filter(topology=topology).exists()
    if is_first and topology.applied_at is not None:
        settle_one(topology, topology.applied_at)


def _record_queue(
    topology: Topology, stop: Event, beat: Beat, *, until: float | None = None
) -> None:
    """The retired queue to its end, else the tap; the tap in any case with `until`.

    That is when to stop, in monotonic seconds.
    """
    reads_retired = bool(topology.retired_tap) and until is None
    source = topology.as_retired("classic") if reads_retired else topology
    log = _log_of(source)
    was_replaced = bool(topology.retired_tap or read_taps(topology))
    loss = gaps.before_reading(source, was_unread=was_replaced and not reads_retired)
    recorder = QueueRecorder(source, log, may_repeat=was_replaced)
    end = retired_taps.End()

    def is_over(has_copies: bool) -> bool:
        if reads_retired:
            return end.close(topology, recorder, has_copies)
        if recorder.may_repeat and recorder.backlog.is_caught_up and until is None:
            retired_taps.delete_read(topology)
            recorder.may_repeat = False
        return until is not None and monotonic() > until

    try:
        with Consumer(source.broker.address, source.tap_queue, prefetch=PREFETCH) as consumer:
            gaps.note(source, loss)
            _follow(consumer, recorder, stop, beat, is_over)
    except NotFound:
        if not reads_retired:
            gaps.tap_is_absent(source)
        raise
    finally:
        log.close()


def _record_stream(topology: Topology, stop: Event, beat: Beat) -> None:
    """The stream that is the tap now, or the retired one to its end."""
    log = _log_of(topology)
    source = topology.as_retired("stream") if topology.retired_tap else topology
    try:
        recorder = StreamRecorder(source, log, _position(source))
        end = retired_taps.End()

        def is_over(has_copies: bool) -> bool:
            return bool(topology.retired_tap) and end.close(topology, recorder, has_copies)

        with _open_consumer(source, recorder.position.start) as consumer:
            if loss := gaps.absence(source):
                gaps.note(source, loss)
            _follow(consumer, recorder, stop, beat, is_over)
    except RetiredTapMissing:
        retired_taps.close_absent(topology)
    except streams.StreamReplaced as error:
        gaps.note(source, gaps.Loss(str(error)))
        streams.forget(source)
        raise RecordingFailed(
            f"{error} The recorder reads the new stream from its beginning."
        ) from error
    except streams.NotAlone as error:
        raise RecordingFailed(str(error)) from error
    finally:
        log.close()


def _position(topology: Topology) -> streams.Position:
    try:
        return streams.resume(topology)
    except db.Error as error:
        raise refused(topology, error) from error


@contextmanager
def _open_consumer(topology: Topology, start: Start) -> Iterator[Consumer]:
    """The stream from there on. Raises RetiredTapMissing of a retired one that somebody deleted.

    Raises NotFound of another; then the next one starts at its beginning.
    """
    address = topology.broker.address
    with ExitStack() as stack:
        try:
            consumer = stack.enter_context(
                Consumer(address, topology.tap_queue, prefetch=STREAM_PREFETCH, start=start)
            )
        except NotFound:
            if _is_deleted(topology):
                if topology.retired_tap:
                    raise RetiredTapMissing from None
                gaps.tap_is_absent(topology)
                streams.forget(topology)
            raise
        yield consumer


def _is_deleted(topology: Topology) -> bool:
    """RabbitMQ also answers NOT_FOUND for a queue that starts slowly."""
    try:
        with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
            management.queue(topology.tap_queue)
    except NotFound:
        return True
    except BrokerError:
        return False
    return False


def _follow(
    consumer: Consumer,
    recorder: Recorder,
    stop: Event,
    beat: Beat,
    is_over: Callable[[bool], bool],
) -> None:
    """Record until `stop` is set, the tap is another one, or `is_over`.

    `is_over` gets whether copies came, or may have come while this process was delayed.
    """
    beaten = 0.0
    limit = STREAM_BATCH if isinstance(recorder, StreamRecorder) else BATCH
    while not stop.is_set():
        began = monotonic()
        deliveries = consumer.batch(
            limit=limit, limit_bytes=BATCH_BYTES, wait=WAIT_SECONDS, linger=LINGER_SECONDS
        )
        is_full = _is_full(deliveries, limit)
        was_held_up = monotonic() - began > WAIT_SECONDS + LINGER_SECONDS + DELAYED_SECONDS
        recorder.backlog.take(is_full=is_full, was_held_up=was_held_up)
        is_busy = len(deliveries) > limit // 4
        pressure.set_behind(recorder.topology.slug, is_behind=is_busy)
        recorder.watch(is_behind=is_full)
        if deliveries:
            recorder.put_away(deliveries)
            consumer.ack_through(deliveries[-1])
        elif not recorder.is_sure:
            recorder.doubt()
        if is_over(bool(deliveries) or was_held_up):
            return
        if monotonic() - beaten > BEAT_SECONDS:
            beaten = monotonic()
            if not recorder.refresh():
                return
            if recorder.is_sure:
                gaps.was_read(recorder.topology)
            beat(recorder.counters())


def _is_full(deliveries: Sequence[Delivery], limit: int) -> bool:
    """Whether more may have waited: by number, or by what the limit of bytes left behind."""
    size = sum(len(delivery.message.body) for delivery in deliveries)
    return len(deliveries) >= limit or size > BATCH_BYTES // 2


def _log_of(topology: Topology) -> EventLog:
    return EventLog(settings.EVENT_LOG, f"tap.{topology.slug}.{uuid4().hex[:8]}")
