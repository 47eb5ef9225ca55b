"""Parking by the worker: new messages automatically, all of a queue once, or chosen ones of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from time import monotonic

from django import db

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.consume import (
    BATCH_BYTES,
    Acks,
    Limits,
    Taking,
    limits_of,
    open_session,
)
from delayboard.dead_letters.parked.store_batch import (
    ParkingWriter,
    SpaceCheck,
    StoreFailed,
    find_earlier,
    forget_connection,
    number_unsure,
)
from delayboard.dead_letters.queues import peek
from delayboard.models import DeadLetterQueue, ParkedMessage, Parking, ParkSession
from delayboard.models.background_task import Beat
from topology import work
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, Conflict, NotFound
from topology.models import Work
from topology.models.read_only import refuse_read_only

WAIT_SECONDS = 0.5
LINGER_SECONDS = 0.2
BEAT_SECONDS = 0.5
KIND = "park"
# Most searches for chosen messages, which another reader may hold for a moment.
MOST_SEARCHES = 4
SEARCH_AGAIN_AFTER = timedelta(seconds=2)
# Most messages, and bytes, that are searched for the chosen messages.
MOST_READ = 500
MOST_BYTES = 64 * 1024 * 1024
HOLDING_SECONDS = 10.0
# Seconds for which a queue with ready messages may deliver nothing.
PATIENCE = 10.0


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
    with open_session(row.broker, row.queue, by=row.watched_by) as session, consumer:
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


def park(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do a claimed parking to its end. Raises as `work.attempt` expects."""
    parking = Parking.objects.select_related("broker", "created_by").get(pk=claimed.subject)
    try:
        SpaceCheck().check()
        progress = Progress(work.lease_of(claimed), parking, stop, alive)
        if parking.handles is None:
            _park_all(parking, progress)
        elif parking.handles:
            _park_these(parking, progress, is_resumed=claimed.attempts > 1)
    except StoreFailed as error:
        raise work.Later(str(error)) from error
    except BrokerError as error:
        if error.retry_helps:
            raise
        raise work.Failed(str(error)) from error
    parking.refresh_from_db(fields=["handles"])
    missing = len(parking.handles or ())
    if missing and claimed.attempts < MOST_SEARCHES:
        sentence = (
            f"{missing} selected messages are not found yet. Delayboard searches the queue again."
        )
        raise work.Later(sentence, after=SEARCH_AGAIN_AFTER)


class Progress:
    """The lease of a parking, renewed in each transaction; what it raises undoes that."""

    def __init__(
        self, lease: work.Lease, parking: Parking, stop: Event, alive: Callable[[], None]
    ) -> None:
        self._lease, self._parking = lease, parking
        self.stop, self.alive = stop, alive
        self.parked = parking.parked

    def pulse(self, number: int = 0) -> None:
        """Raises Stopped when cancelled or taken over, Ending when the worker ends."""
        if self.stop.is_set():
            raise work.Ending
        done = self.parked + number
        self._lease.pulse(done, max(done, self._parking.requested or 0))

    def report(self, _trouble: str) -> None:
        """What the database refuses is tried again, and shown where it is given up."""
        self.alive()

    @contextmanager
    def writing(self) -> Iterator[ParkingWriter]:
        """A session of the parking for the length of the block."""
        parking, by = self._parking, self._parking.created_by
        with open_session(parking.broker, parking.queue, by=by, parking=parking) as session:
            yield ParkingWriter(session, pulse=self.pulse)


def _park_all(parking: Parking, progress: Progress) -> None:
    if parking.requested is None:
        parking.requested = _depth(parking)
        parking.save(update_fields=["requested"])
    progress.pulse()
    missing = max(0, parking.requested - (parking.parked - parking.repeats))
    # What a crash left in the queue although it is kept comes again, and before all others.
    wanted = missing + number_unsure(parking)
    if wanted <= 0:
        return
    found = limits_of(parking.broker, parking.queue)
    limits = Limits(min(found.prefetch, wanted), found.deliveries)
    consumer = Consumer(parking.broker.address, parking.queue, prefetch=limits.prefetch)
    with progress.writing() as writer, consumer:
        taking = Taking(consumer, writer, limits, wanted=wanted)
        with taking.closing():
            came_at = monotonic()
            while taking.taken < wanted:
                deliveries = consumer.batch(
                    limit=min(limits.batch, wanted - taking.taken),
                    limit_bytes=BATCH_BYTES,
                    wait=WAIT_SECONDS,
                )
                progress.alive()
                if deliveries:
                    taking.store(deliveries, stop=progress.stop, report=progress.report)
                    progress.parked = parking.parked + taking.taken
                    came_at = monotonic()
                    taking.confirm_acks()
                    comes_again = deliveries[-1].message.redelivered
                    if writer.stored - writer.repeats >= missing and not comes_again:
                        break
                    continue
                progress.pulse()
                if not _depth(parking):
                    break
                if monotonic() - came_at > PATIENCE:
                    raise Conflict(
                        f"“{parking.queue}” has messages but delivers none. Another consumer may "
                        "be its single active consumer."
                    )


def _depth(parking: Parking) -> int:
    depths = live_depths(parking.broker.address, [parking.queue])
    if parking.queue not in depths:
        raise NotFound(f"There is no queue “{parking.queue}”.")
    return depths[parking.queue]


def _park_these(parking: Parking, progress: Progress, *, is_resumed: bool) -> None:
    progress.pulse()
    address = parking.broker.address
    with progress.writing() as writer, getter(address, parking.queue) as source:
        session = writer.session
        wanted = list(parking.handles or ())
        seen = _read_head(source, wanted, progress)
        found = {handle: delivery for handle, delivery in seen if handle in wanted}
        again = _find_repeats(session, [d for h, d in seen if h not in found]) if is_resumed else []
        deliveries = [*found.values(), *again]
        if not deliveries:
            return
        parked_messages = writer.store_patiently(
            [delivery.message for delivery in deliveries],
            stop=progress.stop,
            report=progress.report,
            handles=find_missing(wanted, found),
        )
        acks = Acks(session)
        for delivery in deliveries:
            source.ack([delivery.tag])
        acks.sent(parked_messages[-1])
        # The broker answers a get after what it was sent before.
        source.get()
        acks.ended()


def find_missing(wanted: Sequence[str], taken: Collection[str]) -> list[str]:
    """Pure: the handles that are still missing, renumbered after equal ones were taken."""
    remaining = []
    for handle in wanted:
        if handle not in taken:
            equal, _, occurrence = handle.rpartition(".")
            number = int(occurrence)
            before = sum(f"{equal}.{earlier}" in taken for earlier in range(1, number))
            remaining.append(f"{equal}.{number - before}")
    return remaining


def _read_head(
    source: Consumer, wanted: Sequence[str], progress: Progress
) -> list[tuple[str, Delivery]]:
    """What is at the head, until all that are wanted are among it, by handle."""
    missing = set(wanted)
    occurrences: Counter[str] = Counter()
    seen: list[tuple[str, Delivery]] = []
    size = 0
    until = monotonic() + HOLDING_SECONDS
    while missing and len(seen) < MOST_READ and size < MOST_BYTES and monotonic() < until:
        delivery = source.get()
        if delivery is None:
            break
        message = delivery.message
        handle = peek.handle_of(message, message.content_id, occurrences)
        missing.discard(handle)
        seen.append((handle, delivery))
        size += len(delivery.message.body)
        if len(seen) % 50 == 0:
            progress.pulse()
    return seen


def _find_repeats(session: ParkSession, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The deliveries that this very parking kept, and whose ack the broker may not have had."""
    prepared = [store.prepare(d.message, session.queue) for d in deliveries]
    earlier = find_earlier(session, prepared)
    own = set(
        ParkedMessage.objects.filter(
            pk__in=[key for key in earlier if key],
            session__parking=session.parking,
            # After an orderly end an equal one is another that was not chosen, most likely.
            session__ended_at=None,
        ).values_list("pk", flat=True)
    )
    return [d for d, key in zip(deliveries, earlier, strict=True) if key in own]
