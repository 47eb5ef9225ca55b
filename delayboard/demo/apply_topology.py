"""The demo's topologies as rows: created and applied when the demo first needs them."""

from __future__ import annotations

from typing import Any

from analytics.models import Slo
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Broker, State, Topology
from topology.operations import provision
from topology.operations.probes import probe_problem, start_probes
from topology.operations.topology_rows import create_topology
from topology.patterns.table import PATTERNS

# A visitor sees the first ones soon.
PROBE_MINUTES = 1


def apply_topology(
    broker: Broker,
    kind: str,
    params: Any,
    *,
    keep_bodies: bool = False,
    target_percent: float | None = None,
) -> Topology | None:
    """The topology, created and applied if it never was; None after its teardown.

    A new one stores the bodies of its messages with `keep_bodies`, and has the target that this
    share of deliveries is at most a second late.

    Raises BrokerError, and Refusal when other objects have the names.
    """
    rows = Topology.objects.filter(broker=broker, kind=kind)
    topology = rows.filter(params=PATTERNS[kind].store(params)).order_by("-pk").first()
    if topology is None:
        topology = create_topology(None, broker, kind, params)
        Topology.objects.filter(pk=topology.pk).update(keep_bodies=keep_bodies)
        if target_percent is not None:
            Slo.objects.create(topology=topology, percent=target_percent)
    if topology.state in (State.PLANNED, State.APPLYING):
        provision.apply(None, topology)
        topology.refresh_from_db()
        with Management(broker.address) as management:
            snapshot = observe(management)
        # Not every pattern can have them; the page says why.
        if not probe_problem(topology, snapshot):
            start_probes(None, topology, minutes=PROBE_MINUTES)
    return topology if topology.state == State.APPLIED else None
