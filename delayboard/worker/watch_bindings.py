"""Looks every few seconds for destinations without a binding and for stuck messages."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from analytics.scheduled.summaries.destinations import update_missing_bindings
from topology import snapshots
from topology.models import Broker, MissingBinding, State, Topology
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import has_free_destinations
from topology.snapshot import Snapshot

# The broker counts every five seconds.
CHECK_SECONDS = 5.0


class BindingWatch:
    """Compares each snapshot with the one of the look before."""

    def __init__(self) -> None:
        self._seen: dict[int, Snapshot] = {}

    def check(self, **_: object) -> dict[str, object]:
        """Update the rows of every applied topology whose broker answers.

        Returns missing (destinations without a binding), stuck and waiting (messages).
        """
        deleted = MissingBinding.objects.exclude(topology__state=State.APPLIED)
        if deleted.exists():
            deleted.delete()
        by_broker: dict[int, list[Topology]] = {}
        for topology in Topology.objects.filter(state=State.APPLIED).select_related("broker"):
            with suppress(ParamsError):
                if has_free_destinations(topology.pattern, topology.parsed):
                    by_broker.setdefault(topology.broker_id, []).append(topology)
        rows = [row for found in by_broker.values() for row in self._check(found)]
        return {
            "missing": sum(bool(row.destination) for row in rows),
            "stuck": sum(row.stuck for row in rows),
            "waiting": sum(row.waiting for row in rows),
        }

    def _check(self, topologies: list[Topology]) -> list[MissingBinding]:
        broker: Broker = topologies[0].broker
        known = snapshots.fresh(broker, timedelta(seconds=CHECK_SECONDS / 2))
        earlier = self._seen.get(broker.pk)
        if known.error or known.snapshot is None:
            return list(MissingBinding.objects.filter(topology__in=topologies))
        if earlier is None or known.snapshot.taken_at > earlier.taken_at:
            self._seen[broker.pk] = known.snapshot
        else:
            earlier = None
        return [
            row
            for topology in topologies
            for row in update_missing_bindings(topology, known.snapshot, earlier)
        ]
