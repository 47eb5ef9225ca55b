"""The background task of a topology's probes, run by whoever holds the lease of its work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event

from django.utils import timezone

from analytics.models import Probe
from analytics.probes.send_probe import is_due, send_probe
from analytics.probes.take_arrivals import mark_late, take
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import BrokerError, NotFound
from topology.models import Probing, Topology, Work
from topology.operations.ownership import Refusal
from topology.operations.probes import remove_probe_queue

logger = logging.getLogger(__name__)
# More probes than are ever in flight.
MOST_PROBES = 1000
WAIT_SECONDS = 2.0
# What comes this soon after the consumer may have waited for it.
BACKLOG = timedelta(seconds=1)
BATCH_BYTES = 1_000_000


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
