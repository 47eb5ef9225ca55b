"""The rows of topologies that differ from their definitions, written from a broker's snapshot."""

from __future__ import annotations

from contextlib import suppress

from topology.definitions import Definitions
from topology.models import Broker, Drift, State, Topology
from topology.operations import provision
from topology.patterns.pattern import ParamsError
from topology.provisioning.plan import Plan
from topology.snapshot import Snapshot

# Topology, parameters, tap, probes.
_Key = tuple[int, str, str, str, str]


class DriftCheck:
    """Compares a topology only when it or what its broker declares changed.

    Comparing 142 objects takes milliseconds.
    """

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Definitions, dict[_Key, Plan]]] = {}

    def update_rows(self, broker: Broker, snapshot: Snapshot) -> int:
        """Update the rows of a broker's topologies; returns how many are not in sync.

        A row whose parameters are no longer valid is skipped.
        """
        applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
        drifted = [
            _write(topology, plan, snapshot)
            for topology, plan in self._compare(broker, list(applied), snapshot)
            if not plan.is_empty
        ]
        Drift.objects.filter(topology__broker=broker).exclude(topology__in=drifted).delete()
        return len(drifted)

    def _compare(
        self, broker: Broker, topologies: list[Topology], snapshot: Snapshot
    ) -> list[tuple[Topology, Plan]]:
        declared, before = self._plans.get(broker.pk, (Definitions(), {}))
        if declared is not snapshot.declared and declared != snapshot.declared:
            before = {}
        now: dict[_Key, Plan] = {}
        found = []
        for topology in topologies:
            # The snapshot is older than what was applied since.
            if topology.applied_at is not None and topology.applied_at > snapshot.taken_at:
                continue
            tap = (topology.tap_type, topology.tap_name)
            key = (topology.pk, str(topology.params), *tap, topology.probing)
            with suppress(ParamsError):
                now[key] = before.get(key) or provision.plan_for(topology, snapshot)
                found.append((topology, now[key]))
        self._plans[broker.pk] = (snapshot.declared, now)
        return found


def _write(topology: Topology, plan: Plan, snapshot: Snapshot) -> Topology:
    missing, changed = len(plan.select("create")), 0
    for change in plan.select("conflict"):
        # A binding between objects that nobody makes is in conflict, and it is missing.
        is_missing = snapshot.declared.get(change.object.identity) is None
        missing, changed = missing + is_missing, changed + (not is_missing)
    numbers = {"objects_count": len(plan.changes), "missing": missing, "changed": changed}
    if not Drift.objects.filter(topology=topology).update(**numbers):
        Drift.objects.create(topology=topology, since_at=snapshot.taken_at, **numbers)
    return topology
