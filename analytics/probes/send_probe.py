"""Sends the next probe of a topology when it is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from django.db import transaction

from analytics.models import Probe
from analytics.probes.choose_delay import choose_delay
from analytics.probes.probe_events import write_sent
from topology import snapshots
from topology.broker.amqp.publisher import publisher
from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.message import PROBE_HEADER, PROBE_SENT_HEADER, Publish, Route
from topology.models import Probing, Topology
from topology.operations.ownership import own_declared
from topology.provisioning.probes import stray_probe

BODY = b"Delayboard measures this delay."
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


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
        channel.publish(Publish(route.exchange, route.routing_key, properties, BODY))
    return sent_at
