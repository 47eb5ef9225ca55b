"""Takes what arrives in a probe queue, and finds what should have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import transaction

from analytics.buckets import LONG_OVERDUE
from analytics.models import Probe
from analytics.probes.probe_events import write_arrived, write_sent
from analytics.probes.send_probe import EPOCH, MICROSECOND
from topology.broker.amqp.frames import Delivery
from topology.message import PROBE_SENT_HEADER, Message
from topology.models import Topology

ABANDONED_AFTER = timedelta(hours=1)


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
    """As its header says, where that can be true; anybody can publish to the queue."""
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
