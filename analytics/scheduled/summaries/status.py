"""What is known of each topology's recording and queues, to find_doubt the list by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Sum

from analytics.buckets import OVERDUE_AFTER
from analytics.models import Firehose, Gap, Minute, Probe
from analytics.observation import SILENT_AFTER, untapped
from analytics.scheduled.queries import listing
from analytics.scheduled.rows import lag
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.completeness import LONG_SECONDS, Doubt, Lost, Seen, find_doubt
from analytics.scheduled.summaries.counts import Scope
from topology.models import State, Topology
from topology.operations import provision
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.snapshots import Latest

# Depths that are older are no measure of a list of now.
OLDEST_DEPTHS = timedelta(seconds=20)
# The broker counts every five seconds, and a poll is a few seconds old.
COUNTED_WITHIN_SECONDS = 10
# Gaps that may have left messages in the list which have left.
REMEMBERED = timedelta(days=30)
MOST_GAPS = 100


@dataclass(frozen=True)
class TopologyDoubt:
    """A topology of whose part of the list there is a reason to doubt."""

    topology: Topology
    doubt: Doubt

    @property
    def sentence(self) -> str:
        """All of it in words."""
        since = f" since {self.doubt.since:%Y-%m-%d %H:%M:%S} UTC" if self.doubt.since else ""
        parts = (f"The list {self.doubt.verdict}{since}.", self.doubt.sentence, *self.doubt.why)
        return " ".join(part for part in parts if part)

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        since = self.doubt.since
        return {
            "topology": self.topology.slug,
            "since": since.isoformat() if since else None,
            "why": list(self.doubt.why),
            "missing_at_least": self.doubt.missing,
            "no_longer_waiting_at_least": self.doubt.departed,
        }


def doubts(
    scope: Scope, topologies: Iterable[Topology], latest: Mapping[int, Latest]
) -> list[TopologyDoubt]:
    """The doubtful among the topologies that were applied, those that are certainly incomplete
    first; `latest` is by broker."""
    applied = [one for one in topologies if one.state in (State.APPLIED, State.APPLYING)]
    known = _Known(scope, applied)
    found = [(one, find_doubt(known.seen(one, latest.get(one.broker_id)))) for one in applied]
    doubtful = [TopologyDoubt(one, doubt) for one, doubt in found if doubt is not None]
    return sorted(doubtful, key=lambda one: one.doubt.is_open)


class _Known:
    """Database values of several topologies, read at once."""

    def __init__(self, scope: Scope, topologies: Collection[Topology]) -> None:
        self._now = scope.now
        self._scope = scope
        late_at = scope.now - OVERDUE_AFTER
        self._overdue = counts.count_by_topology(scope.rows(until_at=late_at))
        long_ago = scope.now - timedelta(seconds=LONG_SECONDS)
        self._long_overdue = counts.count_by_topology(scope.rows(until_at=long_ago))
        brokers = {topology.broker_id for topology in topologies}
        unread = listing.find_unread(topologies, scope.now)
        self._silent = {topology.pk: at for topology, at in unread}
        self._firehoses = dict(
            Firehose.objects.filter(broker__in=brokers).values_list("broker", "read_at")
        )
        self._behind = lag.behind(settings.EVENT_LOG, scope.now)
        self._moved = _moved(topologies, scope.now)
        self._gaps = _gaps(topologies, scope.now)
        self._probes = _probes(topologies, scope.now)

    def seen(self, topology: Topology, latest: Latest | None) -> Seen:
        overdue = self._overdue[topology.pk]
        snapshot = _young(latest, self._now)
        queued, passing = _depth(topology, snapshot) if snapshot else (None, 0)
        probes, passing_probes = self._probes.get(topology.pk, (0, 0))
        return Seen(
            now=self._now,
            listed=self._scope.by_topology[topology.pk],
            overdue=overdue,
            queued=None if queued is None else max(0, queued - probes),
            long_overdue=self._long_overdue[topology.pk],
            moved=self._moved.get(topology.pk, 0) + passing + passing_probes,
            longest=_longest(topology),
            watched_at=topology.applied_at,
            sees_entries="entry" not in untapped(topology) or topology.broker_id in self._firehoses,
            sees_exits=topology.pk not in self._scope.not_observed,
            silent_since=self._silent_since(topology),
            behind=self._behind,
            lost=self._lost(topology, has_overdue=bool(overdue)),
        )

    def _silent_since(self, topology: Topology) -> datetime | None:
        """Since when its tap, or the firehose that it needs, is not read."""
        since = [self._silent.get(topology.pk)]
        if untapped(topology):
            read_at = self._firehoses.get(topology.broker_id)
            is_silent = read_at is not None and self._now - read_at > SILENT_AFTER
            since.append(read_at if is_silent else None)
        return min((at for at in since if at is not None), default=None)

    def _lost(self, topology: Topology, *, has_overdue: bool) -> tuple[Lost, ...]:
        gaps = self._gaps[topology.pk]
        scope = self._scope.only(topology.pk)
        doubtful = [
            counts.count(scope.rows(gap.from_at, min(gap.until_at, self._now)))
            if has_overdue
            else 0
            for gap in gaps
        ]
        return tuple(
            Lost(gap.from_at, gap.until_at, gap.why, gap.at_most, number)
            for gap, number in zip(gaps, doubtful, strict=True)
        )


def _moved(topologies: Collection[Topology], now: datetime) -> dict[int, int]:
    """How many entered or left in this minute and the last."""
    since = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    rows = Minute.objects.filter(topology__in=topologies, minute_at__gte=since)
    sums = rows.values_list("topology").annotate(Sum("entered"), Sum("left"))
    return {pk: entered + left for pk, entered, left in sums}


def _probes(topologies: Collection[Topology], now: datetime) -> dict[int, tuple[int, int]]:
    """How many probes wait in the delay queues, and how many the depths may not count right.

    They are in no list.
    """
    found: dict[int, tuple[int, int]] = {}
    rows = Probe.objects.filter(topology__in=topologies, arrived_at=None, abandoned_at=None)
    counted = timedelta(seconds=COUNTED_WITHIN_SECONDS)
    for pk, sent_at, delay in rows.values_list("topology", "sent_at", "delay"):
        if sent_at is None:
            continue
        due_at = sent_at + delay
        waiting, passing = found.get(pk, (0, 0))
        is_passing = now - sent_at < counted or abs(now - due_at) < counted
        found[pk] = (waiting + (due_at > now), passing + is_passing)
    return found


def _gaps(topologies: Collection[Topology], now: datetime) -> dict[int, list[Gap]]:
    found: dict[int, list[Gap]] = defaultdict(list)
    rows = Gap.objects.filter(topology__in=topologies, until_at__gt=now - REMEMBERED)
    for gap in rows[:MOST_GAPS]:
        found[gap.topology_id].append(gap)
    return found


def _young(latest: Latest | None, now: datetime) -> Snapshot | None:
    if latest is None or latest.error or latest.snapshot is None:
        return None
    return latest.snapshot if now - latest.snapshot.taken_at < OLDEST_DEPTHS else None


def _depth(topology: Topology, snapshot: Snapshot) -> tuple[int | None, int]:
    """Messages in its delay queues, None where one is not counted; how many enter meanwhile."""
    try:
        queues = provision.queues_of(topology, snapshot)
        waits = topology.pattern.delay_queues(topology.parsed, queues)
    except ParamsError:
        return None, 0
    names = [queue.name for queue in waits]
    depth = snapshot.sum_messages(names) if names else 0
    if depth is None:
        return None, 0
    passing = sum(snapshot.numbers[name].publish_rate or 0.0 for name in names)
    return depth, round(passing * COUNTED_WITHIN_SECONDS)


def _longest(topology: Topology) -> timedelta:
    try:
        return topology.pattern.longest(topology.parsed)
    except ParamsError:
        return timedelta.max
