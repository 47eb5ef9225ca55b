"""Records one topology's tap: batch -> log on disk -> ack.

Nothing is acknowledged before it is in the log, so a crash makes the broker deliver the batch
again. A copy may then be recorded twice, marked, and never lost. A stream tap of an earlier version
is replaced, and read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from threading import Event
from time import monotonic
from typing import TypeAlias
from uuid import uuid4

from django.conf import settings

from analytics.log import EventLog
from analytics.models import Recording
from analytics.recorder import gaps, pressure, retired_taps
from analytics.recorder.batches import Recorder, RecordingFailed, StreamRecorder
from analytics.recorder.held_up import pulse
from analytics.recorder.shared_rows import shared
from analytics.scheduled.projection import settle_one
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import NotFound
from topology.models import Topology
from topology.operations.ownership import Refusal
from topology.operations.replace_tap import read_taps, replace_tap

__all__ = ["Beat", "RecordingFailed", "record"]


# Most copies of a batch. Each batch costs a sync of the disk, however many copies it has; copies
# that came and are not acknowledged are recorded again after a crash.
BATCH = 1000
# Most copies without an ack: they go on coming while a batch is written.
PREFETCH = 3 * BATCH
BATCH_BYTES = 16 * 1024 * 1024
WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
# Copies wake a recorder at once; only that it has to end is noticed later. A mark that the tap was
# read is as old as three waits of an idle one, and counts only so long (analytics/observation.py).
IDLE_WAIT_SECONDS, IDLE_AFTER_SECONDS = 2.0, 5.0
BEAT_SECONDS = 1.5
# Seconds until the recorder checks a retired tap again whose node is down.
AGAIN_SECONDS = 10.0

Beat: TypeAlias = Callable[[Mapping[str, object]], None]


def record(topology_id: int, *, stop: Event, beat: Beat) -> None:
    """Record the tap of this topology until `stop` is set.

    `beat` receives the counters about once a second: tap (its type), recorded, unknown (copies that
    do not match the pattern, excluded), caught_up, last_at. Raises BrokerError, LogError and
    RecordingFailed, each with a sentence; another call continues.
    """
    topology = _load_topology(topology_id)
    if topology.applied_at is not None and not Recording.objects.filter(topology=topology).exists():
        # One that was adopted may have had messages of ours in it before it was tapped.
        settle_one(topology, topology.applied_at)
    while not stop.is_set():
        topology = _load_topology(topology_id)
        if topology.tap_type == "stream":
            _replace_stream(topology)
        elif not topology.retired_tap:
            _record_tap(topology, stop, beat)
        else:
            kind = retired_taps.find_type(topology)
            if kind == "":
                retired_taps.close_absent(topology)
            elif kind == retired_taps.DOWN:
                _record_tap(topology, stop, beat, until=monotonic() + AGAIN_SECONDS)
            else:
                _record_retired(topology, stop, beat, is_stream=kind == "stream")


def _replace_stream(topology: Topology) -> None:
    """A stream tap of an earlier version can destroy what it records."""
    try:
        replace_tap(None, topology)
    except Refusal as refusal:
        raise RecordingFailed(
            f"The stream tap of {topology.slug} is not replaced. {refusal}"
        ) from refusal


def _load_topology(topology_id: int) -> Topology:
    return Topology.objects.select_related("broker").get(pk=topology_id)


def _record_tap(topology: Topology, stop: Event, beat: Beat, *, until: float | None = None) -> None:
    """The tap of today; with `until` (monotonic seconds) until then at most."""
    was_replaced = bool(topology.retired_tap or read_taps(topology))
    loss = gaps.before_reading(topology, was_unread=was_replaced)
    with closing(_log_of(topology)) as log:
        recorder = Recorder(topology, log, may_repeat=was_replaced)

        def is_over(_: bool) -> bool:
            if recorder.may_repeat and recorder.is_caught_up and until is None:
                retired_taps.delete_read(topology)
                recorder.may_repeat = False
            return until is not None and monotonic() > until

        try:
            with Consumer(
                topology.broker.address, topology.tap_queue, prefetch=PREFETCH
            ) as consumer:
                gaps.note(topology, loss)
                _follow(consumer, recorder, stop, beat, is_over)
        except NotFound:
            gaps.tap_is_absent(topology)
            raise


def _record_retired(topology: Topology, stop: Event, beat: Beat, *, is_stream: bool) -> None:
    """The tap that was replaced, to its end."""
    source = topology.as_retired("classic")
    loss = gaps.absence(source) if is_stream else gaps.before_reading(source)
    start = retired_taps.find_start(topology) if is_stream else None
    end = retired_taps.End()
    with (
        closing(_log_of(source)) as log,
        Consumer(
            source.broker.address, source.tap_queue, prefetch=PREFETCH, start=start
        ) as consumer,
    ):
        if loss or not is_stream:
            gaps.note(source, loss)
        recorder = (
            StreamRecorder(source, log) if is_stream else Recorder(source, log, may_repeat=True)
        )
        _follow(consumer, recorder, stop, beat, lambda has_copies: end.close(topology, has_copies))


def _follow(
    consumer: Consumer,
    recorder: Recorder,
    stop: Event,
    beat: Beat,
    is_over: Callable[[bool], bool],
) -> None:
    """Record until `stop` is set, the tap is another one, or `is_over`.

    `is_over` gets whether copies came, or may have come while this process was stopped.
    """
    pulse.begin()
    beaten, came_at = 0.0, monotonic()
    looked_at = came_at
    while not stop.is_set():
        is_idle = monotonic() - came_at > IDLE_AFTER_SECONDS
        wait = IDLE_WAIT_SECONDS if is_idle else WAIT_SECONDS
        deliveries = consumer.batch(
            limit=BATCH, limit_bytes=BATCH_BYTES, wait=wait, linger=LINGER_SECONDS
        )
        came_at = monotonic() if deliveries else came_at
        since, looked_at = looked_at, monotonic()
        if was_held_up := pulse.was_held_up(since):
            consumer.doubt(deliveries)
        recorder.is_large = is_large(deliveries)
        recorder.is_caught_up = consumer.is_caught_up and not recorder.is_large
        is_busy = len(deliveries) > BATCH // 4
        pressure.set_behind(recorder.topology.slug, is_behind=is_busy)
        recorder.watch(is_behind=consumer.has_backlog)
        if deliveries:
            recorder.put_away(deliveries)
            consumer.ack(through=deliveries[-1].tag)
        consumer.find_backlog()
        if is_over(bool(deliveries) or was_held_up):
            return
        if monotonic() - beaten > BEAT_SECONDS:
            beaten = monotonic()
            if not recorder.refresh():
                return
            recorder.mark_read()
            beat(recorder.counters())
        shared.write()


def is_large(deliveries: Sequence[Delivery]) -> bool:
    """Whether they are so large that the last of them may have waited for room in a socket."""
    return sum(len(delivery.body) for delivery in deliveries) > BATCH_BYTES // 2


def _log_of(topology: Topology) -> EventLog:
    return EventLog(settings.EVENT_LOG, f"tap.{topology.slug}.{uuid4().hex[:8]}")
