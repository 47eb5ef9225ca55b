"""Records findings, drift and consumption peaks of each broker from its newest snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from django.utils import timezone

from analytics.consumption import ConsumptionMeter
from analytics.probes.kept_probes import find_kept_probes
from analytics.scheduled.summaries.blocked import find_blocked
from topology import snapshots
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.models import Broker
from topology.operations.drift import DriftCheck
from topology.operations.finding_rows import record_findings
from topology.operations.queue_reports import replace_counted, with_reports

# Age of a snapshot after which a broker that nobody else watches is polled.
AGE = timedelta(seconds=10)
# Time between two writes of the last check without a change.
WRITE_AGAIN = timedelta(minutes=1)
# Time after which the reports of a worker that stopped end.
REPORTED_FOR = timedelta(minutes=1)


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
