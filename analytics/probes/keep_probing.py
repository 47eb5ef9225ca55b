"""The background task of a topology's probes, run by whoever holds the lease of its work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event

from django.db import transaction
from django.utils import timezone

from analytics.buckets import LONG_OVERDUE
from analytics.models import Probe
from analytics.probes.send_probe import (
    EPOCH,
    MICROSECOND,
    is_due,
    send_probe,
    write_arrived,
    write_sent,
)
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, NotFound
from topology.message import PROBE_SENT_HEADER, Message
from topology.models import Broker, Probing, State, Topology, Work
from topology.operations.finding_rows import PROBES
from topology.operations.ownership import Refusal
from topology.operations.probes import remove_probe_queue
from topology.patterns.pattern import ParamsError
from topology.provisioning.probes import find_last_wait
from topology.snapshot import Report

logger = logging.getLogger(__name__)
# Most probes that are read at a time, more than are ever in flight.
MOST_PROBES = 1000
WAIT_SECONDS = 2.0
# Time after the start of the consumer in which a probe may have waited for it.
BACKLOG = timedelta(seconds=1)
BATCH_BYTES = 1_000_000

ABANDONED_AFTER = timedelta(hours=1)


def keep_probing(
    claimed: Work, topology: Topology, *, stop: Event, alive: Callable[[], None]
) -> None:
    """Send due probes and consume them, until `stop` is set or another worker has the lease.

    Once they are disabled: until none is on the way, then remove their queue. Raises as
    `work.attempt` expects, and BrokerError for the worker to show: another call continues.
    """
    lease = work.lease_of(claimed)
    try:
        if _until_ended(lease, topology, stop, alive):
            remove_probe_queue(topology, lease)
        lease.pulse(0, 0)
    except Refusal as refusal:
        raise work.Later(str(refusal), after=timedelta(0)) from refusal
    except BrokerError:
        lease.pulse(0, 0)
        lease.give_back("", after=timedelta(0))
        raise
    raise work.Ending


def _until_ended(
    lease: work.Lease, topology: Topology, stop: Event, alive: Callable[[], None]
) -> bool:
    """`_probe`; nothing is left to wait for when probes are disabled and their queue is gone."""
    try:
        return _probe(lease, topology, stop, alive)
    except NotFound:
        topology.refresh_from_db()
        if topology.probing != Probing.ENDING:
            raise
        return True


def _probe(lease: work.Lease, topology: Topology, stop: Event, alive: Callable[[], None]) -> bool:
    """Whether all has ended, so that the queue can go. Raises Stopped, BrokerError."""
    consumer = Consumer(topology.broker.address, topology.probe_queue, prefetch=MOST_PROBES)
    with consumer:
        in_time_from = datetime.now(UTC) + BACKLOG
        while not stop.is_set():
            alive()
            lease.pulse(0, 0)
            topology.refresh_from_db()
            failure = _send_due(topology)
            deliveries = consumer.batch(
                limit=MOST_PROBES, limit_bytes=BATCH_BYTES, wait=WAIT_SECONDS, linger=0
            )
            taken = [
                take(topology, delivery, is_in_time=delivery.received_at >= in_time_from)
                for delivery in deliveries
            ]
            if strangers := taken.count(False):
                logger.warning("%s: messages without a probe: %s", topology.probe_queue, strangers)
            if deliveries:
                consumer.ack(through=deliveries[-1].tag)
            elif datetime.now(UTC) > in_time_from:
                mark_late(topology)
                is_ending = topology.probing == Probing.ENDING
                if is_ending and not Probe.in_flight(topology).exists():
                    return True
            if failure:
                raise failure
    return False


def _send_due(topology: Topology) -> BrokerError | None:
    """Why a due probe was not sent; returned, since those on the way are read all the same."""
    try:
        if is_due(topology, timezone.now()):
            send_probe(topology)
    except BrokerError as error:
        return error
    return None


def take(topology: Topology, delivery: Delivery, *, is_in_time: bool) -> bool:
    """Record an arrival, once however often it is delivered; False for what is no probe of ours.

    One whose confirm was not recorded before a kill has its time of sending from its header. One
    that was abandoned counts all the same.
    """
    name = delivery.message.properties.message_id or ""
    with transaction.atomic():
        rows = Probe.objects.select_for_update(of=("self",)).select_related("topology__broker")
        probe = rows.filter(topology=topology, message_id=name).first()
        if probe is None:
            return False
        if probe.arrived_at is not None:
            return True
        if probe.sent_at is None:
            probe.sent_at = _sent_at(delivery.message, probe, delivery.received_at)
            write_sent(probe)
        probe.arrived_at = delivery.received_at
        probe.abandoned_at = None
        probe.is_in_time = is_in_time and not delivery.message.redelivered
        probe.save(update_fields=["sent_at", "arrived_at", "abandoned_at", "is_in_time"])
        write_arrived(probe)
    return True


def _sent_at(message: Message, probe: Probe, until: datetime) -> datetime:
    """The time in the header of a probe, where it can be true; anybody can publish to the queue."""
    stated = message.headers.get(PROBE_SENT_HEADER)
    if not isinstance(stated, int):
        return probe.created_at
    earliest, latest = ((at - EPOCH) // MICROSECOND for at in (probe.created_at, until))
    return EPOCH + MICROSECOND * min(max(stated, earliest), latest)


def mark_late(topology: Topology) -> None:
    """Mark probes that are overdue, and give up those that have been for long.

    Called only when the queue has just been read and nothing is left in it. A probe without a
    confirm is never overdue: its row is deleted in the end.
    """
    now = datetime.now(UTC)
    rows = Probe.in_flight(topology)
    for probe in rows:
        if probe.sent_at is None:
            if probe.due_at < now - ABANDONED_AFTER:
                probe.delete()
        elif probe.due_at < now - ABANDONED_AFTER:
            rows.filter(pk=probe.pk).update(abandoned_at=now)
        elif probe.due_at < now - LONG_OVERDUE:
            rows.filter(pk=probe.pk, overdue_at=None).update(overdue_at=now)


def find_kept_probes(broker: Broker, now: datetime) -> list[Report]:
    """How many should have left each queue: the last one in which they wait."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
    counts: Counter[str] = Counter()
    for probe in Probe.late(list(applied), now):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            made = probe.topology
            counts[find_last_wait(made.pattern, made.parsed, made.probe_queue, probe.delay)] += 1
    return [Report(PROBES, queue, number, "") for queue, number in counts.items() if queue]
