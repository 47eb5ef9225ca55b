"""What the worker looks at in each broker again and again.

Findings, drift and consumption peaks from the newest snapshot; destinations without a binding and
stuck messages; and every minute samples of dead-letter queues and of the counters of Now.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from analytics.consumption import ConsumptionMeter
from analytics.probes.keep_probing import find_kept_probes
from analytics.scheduled.summaries.blocked import find_blocked
from analytics.scheduled.summaries.destinations import update_missing_bindings
from delayboard.dead_letters.queues.confirmed import sample_depths
from delayboard.models import CounterSample
from delayboard.now.board import BROKER_AGE, overview
from topology import snapshots
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.models import Broker, MissingBinding, State, Topology
from topology.operations.finding_rows import record_findings, replace_counted, with_reports
from topology.operations.provision import DriftCheck
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import has_free_destinations
from topology.snapshot import Snapshot

# Age of a snapshot after which a broker that nobody else watches is polled.
AGE = timedelta(seconds=10)
# Time between two writes of the last check without a change.
WRITE_AGAIN = timedelta(minutes=1)
# Time after which the reports of a worker that stopped end.
REPORTED_FOR = timedelta(minutes=1)

# The broker counts every five seconds.
CHECK_SECONDS = 5.0

EVERY_SECONDS = 60.0


class BrokerCheck:
    """What it recorded of each broker, and when."""

    def __init__(self) -> None:
        self._finder = Finder()
        self._drift = DriftCheck()
        self._meter = ConsumptionMeter()
        self._checked: dict[int, tuple[datetime, int, int]] = {}
        self._recorded: dict[int, tuple[dict[str, int], datetime]] = {}

    def check(self, *, alive: Callable[[], None], **_: object) -> dict[str, object]:
        """Check every broker that answers; returns how many findings and drifted topologies."""
        brokers = list(Broker.objects.all())
        findings = drifted = 0
        for broker, known in zip(brokers, snapshots.fresh_all(brokers, AGE), strict=True):
            if known.snapshot is not None and not known.error:
                now = timezone.now()
                taken_at, *numbers = self._checked.get(broker.pk, (None, 0, 0))
                if taken_at == known.snapshot.taken_at and now - taken_at < 2 * AGE:
                    findings, drifted = findings + numbers[0], drifted + numbers[1]
                    continue
                reports = [
                    *find_blocked(broker, now),
                    *find_kept_probes(broker, now),
                ]
                replace_counted(broker, reports, now + REPORTED_FOR)
                found = self._finder.find(broker.pk, with_reports(broker, known.snapshot))
                self._meter.read(broker, known.snapshot)
                self._record(broker, found, known.snapshot.taken_at)
                differ = self._drift.update_rows(broker, known.snapshot)
                self._checked[broker.pk] = (known.snapshot.taken_at, len(found), differ)
                findings, drifted = findings + len(found), drifted + differ
            alive()
        return {"findings": findings, "drifted": drifted}

    def _record(self, broker: Broker, found: tuple[Finding, ...], at: datetime) -> None:
        before = self._recorded.get(broker.pk)
        # What the rows of findings hold: how many objects each has.
        counts = {one.key: len(one.objects) for one in found}
        if before is None or before[0] != counts or at - before[1] >= WRITE_AGAIN:
            record_findings(broker, found, at)
            self._recorded[broker.pk] = (counts, at)


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


def sample_all(**_: object) -> dict[str, object]:
    """Sample now; returns sampled_at and sampled, how many queues."""
    now = datetime.now(UTC)
    sampled = sample_depths(now)
    sample_counters(now)
    return {"sampled": sampled, "sampled_at": now.isoformat()}


def sample_counters(now: datetime) -> None:
    """Store the known counters of each broker."""
    for broker in Broker.objects.all():
        figures = overview([broker], now, BROKER_AGE).counters
        numbers = {one.key: one.number for one in figures if one.number is not None}
        CounterSample.objects.create(broker=broker, at=now, numbers=numbers)
