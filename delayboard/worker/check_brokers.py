"""What the worker looks at in each broker again and again.

Findings, drift and consumption peaks from the newest snapshot; destinations without a binding and
stuck messages; every minute samples of dead-letter queues and of the counters of Now; and every
15 minutes the history of all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from analytics.buckets import LONG_OVERDUE
from analytics.consumption import ConsumptionMeter
from analytics.models import Probe, ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.probes.keep_probing import find_kept_probes
from analytics.scheduled.summaries.destinations import find_blocked, update_missing_bindings
from delayboard.dead_letters.queues.confirmed import sample_depths
from delayboard.models import CounterSample
from delayboard.now.board import count_each
from delayboard.queue_history import QueueSampler
from topology import snapshots
from topology.findings.find import Finder
from topology.findings.finding import Finding
from topology.models import Broker, MissingBinding, QueueReport, State, Topology
from topology.operations.connect import check_addresses, has_several
from topology.operations.finding_rows import record_findings, replace_counted, with_reports
from topology.operations.provision import DriftCheck
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import has_free_destinations
from topology.snapshot import Snapshot
from topology.snapshots import Latest

ADDRESSES_EVERY_SECONDS = 4.0
# Age of a snapshot after which a broker that nobody else watches is polled, and of one in which
# nothing has happened, or that has not answered, for QUIET_AFTER.
AGE, QUIET_AGE = timedelta(seconds=10), timedelta(seconds=30)
QUIET_AFTER = timedelta(seconds=30)
# Time between two writes of the last check without a change.
WRITE_AGAIN = timedelta(minutes=1)
# Time after which the reports of a worker that stopped end.
REPORTED_FOR = timedelta(minutes=1)

# Seconds between two checks: the broker counts every five seconds.
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
        self._quiet: dict[int, tuple[object, datetime]] = {}

    def check(self, *, alive: Callable[[], None], **_: object) -> dict[str, object]:
        """Check every broker that answers; returns how many findings and drifted topologies."""
        began = timezone.now()
        reporting = _find_reporting(began)
        findings = drifted = 0
        for broker, known in self._read(list(Broker.objects.all()), began):
            before = self._quiet.get(broker.pk)
            seen = _what_happens(known)
            if before is None or before[0] != seen:
                self._quiet[broker.pk] = (seen, began)
            if known.snapshot is not None and not known.error:
                now = timezone.now()
                taken_at, *numbers = self._checked.get(broker.pk, (None, 0, 0))
                if taken_at == known.snapshot.taken_at and now - taken_at < QUIET_AGE + AGE:
                    findings, drifted = findings + numbers[0], drifted + numbers[1]
                    continue
                snapshot = known.snapshot
                if broker.pk in reporting:
                    reports = [*find_blocked(broker, now), *find_kept_probes(broker, now)]
                    replace_counted(broker, reports, now + REPORTED_FOR)
                    snapshot = with_reports(broker, snapshot)
                found = self._finder.find(broker.pk, snapshot)
                self._meter.read(broker, known.snapshot)
                self._record(broker, found, known.snapshot.taken_at)
                differ = self._drift.update_rows(broker, known.snapshot)
                self._checked[broker.pk] = (known.snapshot.taken_at, len(found), differ)
                findings, drifted = findings + len(found), drifted + differ
            alive()
        return {"findings": findings, "drifted": drifted}

    def _read(self, brokers: list[Broker], now: datetime) -> Iterator[tuple[Broker, Latest]]:
        """Each with its snapshot: first those in which something happens."""
        since = {pk: at for pk, (_, at) in self._quiet.items()}
        quiet = [one for one in brokers if now - since.get(one.pk, now) > QUIET_AFTER]
        others = [one for one in brokers if one not in quiet]
        for some, age in ((others, AGE), (quiet, QUIET_AGE)):
            if some:
                yield from zip(some, snapshots.fresh_all(some, age), strict=True)

    def _record(self, broker: Broker, found: tuple[Finding, ...], at: datetime) -> None:
        before = self._recorded.get(broker.pk)
        # What the rows of findings hold: how many objects each has.
        counts = {one.key: len(one.objects) for one in found}
        if before is None or before[0] != counts or at - before[1] >= WRITE_AGAIN:
            record_findings(broker, found, at)
            self._recorded[broker.pk] = (counts, at)


def _find_reporting(now: datetime) -> set[int]:
    """The brokers of which there may be something to report, or something was."""
    late = ScheduledMessage.objects.filter(
        WAITING, topology__broker=OuterRef("pk"), due_at__lt=now - LONG_OVERDUE
    )
    probes = Probe.objects.filter(
        topology__broker=OuterRef("pk"), arrived_at=None, abandoned_at=None
    )
    known = QueueReport.objects.filter(broker=OuterRef("pk"))
    some = Broker.objects.filter(Exists(late) | Exists(probes) | Exists(known))
    return set(some.values_list("pk", flat=True))


def _what_happens(known: Latest) -> object:
    """What differs from poll to poll of a broker that somebody uses or changes."""
    snapshot = known.snapshot
    if snapshot is None or known.error:
        return known.error
    numbers = {
        name: (one.messages, one.unacked, one.consumers, one.published, one.consumed, one.state)
        for name, one in snapshot.numbers.items()
    }
    return (snapshot.declared, snapshot.definitions, snapshot.alarms, snapshot.down, numbers)


class BindingWatch:
    """Compares each snapshot with the one of the look before."""

    def __init__(self) -> None:
        self._seen: dict[int, Snapshot] = {}
        self._is_free: dict[tuple[str, str], bool] = {}

    def check(self, **_: object) -> dict[str, object]:
        """Update the rows of every applied topology whose broker answers.

        Returns missing (destinations without a binding), stuck and waiting (messages).
        """
        deleted = MissingBinding.objects.exclude(topology__state=State.APPLIED)
        if deleted.exists():
            deleted.delete()
        by_broker: dict[int, list[Topology]] = {}
        applied = Topology.objects.filter(state=State.APPLIED)
        names = applied.values_list("pk", "kind", Cast("params", TextField()))
        with_free = [pk for pk, *made in names if self._has_free_destinations(pk, *made)]
        for topology in applied.filter(pk__in=with_free).select_related("broker"):
            by_broker.setdefault(topology.broker_id, []).append(topology)
        rows = [row for found in by_broker.values() for row in self._check(found)]
        return {
            "missing": sum(bool(row.destination) for row in rows),
            "stuck": sum(row.stuck for row in rows),
            "waiting": sum(row.waiting for row in rows),
        }

    def _has_free_destinations(self, pk: int, kind: str, params: str) -> bool:
        """Worked out once for the same parameters."""
        if (kind, params) not in self._is_free:
            self._is_free[kind, params] = False
            with suppress(ParamsError):
                one = Topology.objects.get(pk=pk)
                self._is_free[kind, params] = has_free_destinations(one.pattern, one.parsed)
        return self._is_free[kind, params]

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


class Sampling:
    """What it does each minute."""

    def __init__(self) -> None:
        self._history = QueueSampler()

    def sample(self, **_: object) -> dict[str, object]:
        """Sample now; returns sampled_at and sampled, how many queues."""
        now = timezone.now()
        sampled = sample_depths(now)
        found = count_each(list(Broker.objects.all()), now, QUIET_AGE)
        CounterSample.objects.bulk_create(
            CounterSample(broker=broker, at=now, numbers=numbers)
            for broker, numbers in found.items()
        )
        self._history.sample()
        return {"sampled": sampled, "sampled_at": now.isoformat()}


def watch_addresses(*, alive: Callable[[], None], **_: object) -> dict[str, object]:
    """Check the brokers with several addresses; returns how many addresses do not answer.

    With one address the polls of the broker say as much.
    """
    silent = 0
    for broker in Broker.objects.all():
        if has_several(broker):
            if check_addresses(broker):
                broker.refresh_from_db(fields=["silent"])
            silent += len(broker.silent)
        alive()
    return {"silent addresses": silent}
