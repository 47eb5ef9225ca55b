"""Sends the next probe of a topology when it is due."""

from __future__ import annotations

import random
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import transaction

from analytics.events import PROBE, Kind, MessageEvent, encode
from analytics.facts import SOURCE
from analytics.models import Fact, Probe, ScheduledMessage
from topology import snapshots
from topology.broker.amqp.pipeline import publisher
from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.delays import milliseconds
from topology.message import PROBE_HEADER, PROBE_SENT_HEADER, Publish, Route
from topology.models import Probing, Topology
from topology.operations.ownership import own_declared
from topology.patterns.pattern import ParamsError, Pattern
from topology.provisioning.probes import stray_probe

BODY = b"Delayboard measures this delay."
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

# Newest messages that are read to see which delays are in use.
NEWEST = 500
# Longest delay of a probe: a longer one would report nothing for too long, and delay disabling the
# probes.
LONGEST = timedelta(hours=1)
# Delays of probes where any delay can be had and none was seen.
USUAL = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 10, 30, 60, 300))


class ProbeRefused(BrokerError):
    """No probe was sent, since it would not have arrived in the probe queue alone."""


def is_due(topology: Topology, now: datetime) -> bool:
    """Whether the last probe was sent long enough ago."""
    if topology.probing != Probing.ON:
        return False
    since = now - timedelta(minutes=topology.probe_minutes)
    return not Probe.objects.filter(topology=topology, created_at__gt=since).exists()


def send_probe(topology: Topology) -> Probe:
    """Send one with a random delay from the range in use.

    Its row is there before it is sent, and only a confirm makes it a sent one. Raises BrokerError
    when it was not sent, or when nobody knows: then its row stays for it to arrive.
    """
    wanted = choose_delay(topology)
    route = topology.pattern.probe_route(topology.parsed, wanted, topology.probe_queue)
    probe = Probe.objects.create(
        topology=topology,
        message_id=f"probe-{uuid4().hex}",
        delay=topology.pattern.achievable(topology.parsed, wanted),
        created_at=datetime.now(UTC),
    )
    try:
        sent_at = _publish(topology, route, probe)
    except OutcomeUnknown:
        raise
    except BrokerError:
        probe.delete()
        raise
    probe.sent_at = sent_at
    with transaction.atomic():
        probe.save(update_fields=["sent_at"])
        write_sent(probe)
    return probe


def _publish(topology: Topology, route: Route, probe: Probe) -> datetime:
    """When it was published. The route is checked just before: bindings of others may change."""
    address = topology.broker.address
    with Management(address) as management:
        snapshot = snapshots.for_action(topology.broker, management, topology.probe_definitions)
    found = (topology.pattern, topology.parsed, topology.probe_queue)
    if problem := stray_probe(*found, route, snapshot):
        raise ProbeRefused(problem)
    own_declared(topology, route.declares, snapshot.declared)
    with publisher(address, f"probe of {topology.name}") as channel:
        channel.declare(route.declares)
        sent_at = datetime.now(UTC)
        headers = {
            **route.headers,
            PROBE_HEADER: topology.probe_queue,
            PROBE_SENT_HEADER: (sent_at - EPOCH) // MICROSECOND,
        }
        properties = build_properties(
            headers, message_id=probe.message_id, delivery_mode=2, app_id="delayboard"
        )
        channel.publish(Publish(route.exchange, route.routing_key, properties, BODY)).require()
    return sent_at


def choose_delay(topology: Topology) -> timedelta:
    """A random delay for the next probe."""
    rows = ScheduledMessage.objects.filter(topology=topology, entered_at__isnull=False)
    seen = set(rows.order_by("-pk").values_list("requested_delay", flat=True)[:NEWEST])
    return random.choice(probe_delays(topology.pattern, topology.parsed, seen))


def probe_delays(pattern: Pattern, params: Any, seen: Collection[timedelta]) -> list[timedelta]:
    """The delays to choose from, the shortest first: never empty.

    Those seen, as the pattern really gives them; else those on offer, else usual ones. At most an
    hour, unless only longer ones are on offer: then the shortest of them.
    """
    offered = pattern.delays(params)
    known = [_given(pattern, params, delay) for delay in seen]
    wanted = {delay for delay in known if delay and (not offered or delay in offered)}
    usable = {delay for delay in wanted if delay <= LONGEST}
    usable = usable or {delay for delay in offered if timedelta(0) < delay <= LONGEST}
    if not usable and not offered:
        usable = {delay for one in USUAL if (delay := _given(pattern, params, one))}
    return sorted(usable) or [min(delay for delay in offered if delay)]


def _given(pattern: Pattern, params: Any, delay: timedelta) -> timedelta | None:
    """The delay really given in whole milliseconds; None for one that cannot be had."""
    try:
        return pattern.achievable(params, timedelta(milliseconds=milliseconds(delay)))
    except ParamsError:
        return None


def write_sent(probe: Probe) -> None:
    """Record that the probe entered its delay, in the caller's transaction."""
    assert probe.sent_at is not None
    _write(probe, "scheduled", probe.sent_at, is_in_time=True)


def write_arrived(probe: Probe) -> None:
    """Record that the probe arrived, in the caller's transaction."""
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
