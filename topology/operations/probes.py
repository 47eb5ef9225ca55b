"""Probes on and off: the queue that they arrive in, and the work of sending them."""

from __future__ import annotations

from contextlib import suppress

from django.db import transaction

from topology import audit, snapshots, work
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.models import DEFAULT_PROBE_MINUTES, Probing, Topology, Work, WorkState
from topology.models.work import ENDED, PROBES
from topology.operations.ownership import (
    Refusal,
    alone_with,
    changing,
    disown,
    refuse_replacing,
    refuse_unapplied,
)
from topology.operations.provision import create_owned
from topology.operations.topology_rows import User
from topology.patterns.pattern import ParamsError
from topology.provisioning.probes import shortest_delay, stray_probe
from topology.snapshot import Snapshot

MOST_MINUTES = 24 * 60


def probe_problem(topology: Topology, snapshot: Snapshot) -> str:
    """Why this topology can have no probes; "" when it can."""
    pattern, params = topology.pattern, topology.parsed
    if problem := pattern.probe_obstacle(params, snapshot.definitions):
        return problem
    try:
        route = pattern.probe_route(params, shortest_delay(pattern, params), topology.probe_queue)
    except ParamsError as error:
        return str(error)
    return stray_probe(pattern, params, topology.probe_queue, route, snapshot)


def start_probes(user: User, topology: Topology, *, minutes: int = DEFAULT_PROBE_MINUTES) -> None:
    """Send a probe every so many minutes from now on; enabled already, change the minutes.

    Raises Refusal when a probe would reach real consumers, BrokerError when the broker fails: what
    was created by then is in `owned`, and another call completes it.
    """
    broker = topology.broker
    details = {"every_minutes": minutes}
    with changing(user, topology, "probes enabled", details=details) as management:
        if not 1 <= minutes <= MOST_MINUTES:
            raise Refusal(f"Enter a number of minutes from 1 to {MOST_MINUTES}.")
        refuse_unapplied(topology)
        refuse_replacing(topology)
        wanted = topology.probe_definitions
        snapshot = snapshots.for_action(broker, management, wanted)
        if problem := probe_problem(topology, snapshot):
            raise Refusal(problem)
        create_owned(topology, wanted, management)
        Topology.objects.filter(pk=topology.pk).update(probing=Probing.ON, probe_minutes=minutes)
        if open_work(topology) is None:
            work.create(PROBES, topology.pk, broker=broker, user=user)


def stop_probes(user: User, topology: Topology) -> None:
    """Send no more; the worker removes the queue when those on the way have arrived.

    Unbound before that, they would get stuck in levels with at-least-once dead-lettering.
    """
    with audit.recorded(user, "probes disabled", broker=topology.broker, what=topology.name):
        rows = Topology.objects.filter(pk=topology.pk, probing=Probing.ON)
        rows.update(probing=Probing.ENDING)
    topology.refresh_from_db()


def remove_probe_queue(topology: Topology, lease: work.Lease) -> None:
    """Delete the queue and its bindings, where they are ours, and end the work of its probes.

    Changes nothing when they are enabled again. Raises BrokerError, and Refusal while queues are
    replaced, since that copies bindings; call again.
    """
    with alone_with(topology), Management(topology.broker.address) as management:
        if topology.probing != Probing.ENDING:
            return
        refuse_replacing(topology)
        owned, wanted = topology.owned_identities, topology.probe_definitions
        for binding in wanted.bindings:
            if binding.identity in owned:
                with suppress(NotFound):
                    management.unbind(binding)
        for queue in wanted.queues:
            if queue.identity in owned:
                management.delete_queue(queue.name, only_if_empty=False)
        disown(topology, [obj.identity for obj in wanted])
        with transaction.atomic():
            Topology.objects.filter(pk=topology.pk).update(probing=Probing.OFF)
            lease.end(WorkState.DONE)
    topology.refresh_from_db()


def open_work(topology: Topology) -> Work | None:
    """The work of sending its probes and consuming them, of which one worker holds the lease."""
    rows = Work.objects.filter(kind=PROBES, subject=topology.pk)
    return rows.exclude(state__in=ENDED).first()
