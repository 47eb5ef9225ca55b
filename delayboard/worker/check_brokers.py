"""Records findings, drift and consumption peaks of each broker from its newest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from threading import Event

from analytics.consumption import ConsumptionMeter
from topology import latest
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.models import Broker
from topology.operations.drift import DriftCheck
from topology.operations.finding_rows import record_findings

Beat = Callable[[Mapping[str, object]], None]
CHECK_SECONDS = 5.0
# A broker that nobody else looks at is polled so seldom.
AGE = timedelta(seconds=10)
# Without a change, the time of the last check is written so often.
WRITE_AGAIN = timedelta(minutes=1)


class BrokerCheck:
    """What it recorded of each broker, and when."""

    def __init__(self) -> None:
        self._finder = Finder()
        self._drift = DriftCheck()
        self._meter = ConsumptionMeter()
        self._recorded: dict[int, tuple[dict[str, int], datetime]] = {}

    def run(self, beat: Beat) -> None:
        """Check every broker that answers; reports how many findings and drifted topologies."""
        brokers = list(Broker.objects.all())
        findings = drifted = 0
        for broker, known in zip(brokers, latest.fresh_all(brokers, AGE), strict=True):
            if known.snapshot is not None and not known.error:
                found = self._finder.find(broker.pk, known.snapshot)
                self._meter.read(broker, known.snapshot)
                self._record(broker, found, known.snapshot.taken_at)
                findings += len(found)
                drifted += self._drift.update_rows(broker, known.snapshot)
            beat({"findings": findings, "drifted": drifted})
        beat({"findings": findings, "drifted": drifted})

    def _record(self, broker: Broker, found: tuple[Finding, ...], at: datetime) -> None:
        before, counts = self._recorded.get(broker.pk), _count_findings(found)
        if before is None or before[0] != counts or at - before[1] >= WRITE_AGAIN:
            record_findings(broker, found, at)
            self._recorded[broker.pk] = (counts, at)


def _count_findings(found: Iterable[Finding]) -> dict[str, int]:
    """What the rows of findings hold: how many objects each has."""
    return {one.key: len(one.objects) for one in found}


def keep_checking_brokers(stop: Event, beat: Beat) -> None:
    """Look until `stop` is set."""
    check = BrokerCheck()
    while not stop.is_set():
        check.run(beat)
        stop.wait(CHECK_SECONDS)
