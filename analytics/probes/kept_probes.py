"""The queues that may keep a probe, which is no message of anybody."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime

from analytics.models import Probe
from topology.models import Broker, State, Topology
from topology.operations.queue_reports import PROBES
from topology.patterns.pattern import ParamsError
from topology.provisioning.probes import find_last_wait
from topology.snapshot import Report


def find_kept_probes(broker: Broker, now: datetime) -> list[Report]:
    """How many should have left each queue: the last one in which they wait."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
    counts: Counter[str] = Counter()
    for probe in Probe.late(list(applied), now):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            made = probe.topology
            counts[find_last_wait(made.pattern, made.parsed, made.probe_queue, probe.delay)] += 1
    return [Report(PROBES, queue, number, "") for queue, number in counts.items() if queue]
