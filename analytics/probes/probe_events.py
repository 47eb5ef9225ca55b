"""The events of a probe, on their way into the event log with the row that they are about."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

from analytics.events import PROBE, Kind, MessageEvent, encode
from analytics.facts import SOURCE
from analytics.models import Fact, Probe
from topology.delays import milliseconds


def write_sent(probe: Probe) -> None:
    """It entered its delay, in the caller's transaction."""
    assert probe.sent_at is not None
    _write(probe, "scheduled", probe.sent_at, is_in_time=True)


def write_arrived(probe: Probe) -> None:
    """It came out, in the caller's transaction."""
    assert probe.arrived_at is not None
    _write(probe, "delivered", probe.arrived_at, is_in_time=probe.is_in_time)


def _write(probe: Probe, kind: Kind, at: datetime, *, is_in_time: bool) -> None:
    topology = probe.topology
    event = MessageEvent(
        event_id=f"probe:{uuid4().hex}",
        kind=kind,
        recorded_at=at,
        caught_up=is_in_time,
        source=PROBE,
        broker=topology.broker.slug,
        vhost=topology.broker.vhost,
        topology=topology.slug,
        pattern=topology.kind,
        destination=topology.probe_queue,
        message_id=probe.message_id,
        requested_delay_ms=milliseconds(probe.delay),
        published_at=probe.sent_at,
        published_at_source=SOURCE,
        due_at=probe.due_at if kind == "scheduled" else None,
        attempt=1,
    )
    Fact.objects.create(line=encode(event).decode())
