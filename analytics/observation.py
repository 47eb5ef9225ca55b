"""What of a topology anybody sees: its taps, and the firehose of its vhost where that is on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from analytics.models import Firehose, Recording
from topology.models import Broker, MissingBinding, State, Topology
from topology.structure.copies import Phase

# Age of a mark from which on a recorder is silent. An idle one marks every two seconds; its mark is
# written up to two later, with one of another that is as much older, and replaced two later.
SILENT_AFTER = timedelta(seconds=7)
# Most parts of a condition: more are slow, and SQLite refuses a thousand.
MOST_RANGES = 50


@dataclass(frozen=True)
class StuckRange:
    """Messages of a topology for one destination, "" for any, that are stuck once they are due.

    Those due from `from_at` on, and before `until_at` where the route exists again.
    """

    topology: int
    destination: str
    from_at: datetime
    until_at: datetime | None = None

    def holds(self, topology: int | None, destination: str, due_at: datetime | None) -> bool:
        """Whether a message with this due time is stuck, if it is due."""
        is_for = topology == self.topology and self.destination in ("", destination)
        if not is_for or due_at is None:
            return False
        return self.from_at <= due_at and (self.until_at is None or due_at < self.until_at)


def stuck_ranges(topologies: Collection[int] | None = None) -> tuple[StuckRange, ...]:
    """Which messages are stuck, as the worker last saw it; of these topologies, by id, or of all.

    Of a topology with very many, one range for any destination.
    """
    rows = MissingBinding.objects.filter(from_at__isnull=False, is_dropped=False)
    if topologies is not None:
        rows = rows.filter(topology__in=topologies)
    columns = ("topology", "destination", "from_at", "restored_at")
    by_topology: dict[int, list[StuckRange]] = defaultdict(list)
    for topology, destination, from_at, restored_at in rows.values_list(*columns):
        if from_at is not None:
            found = StuckRange(topology, destination, from_at, restored_at)
            by_topology[topology].append(found)
    return tuple(one for found in by_topology.values() for one in _together(found))


def _together(ranges: list[StuckRange]) -> list[StuckRange]:
    if len(ranges) <= MOST_RANGES:
        return ranges
    return [StuckRange(ranges[0].topology, "", min(one.from_at for one in ranges))]


def is_stuck(
    ranges: Iterable[StuckRange], now: datetime, *, before: Mapping[int, datetime] | None = None
) -> Q:
    """Scheduled messages in these ranges that are due, or were due before the moments by topology.

    With `before` nothing of other topologies.
    """
    found = Q(pk__in=[])
    for one in ranges:
        end_at = now if before is None else before.get(one.topology)
        if end_at is None:
            continue
        end_at = min(end_at, one.until_at or end_at)
        part = Q(topology=one.topology, due_at__gte=one.from_at, due_at__lt=end_at)
        found |= part & Q(destination=one.destination) if one.destination else part
    return found


def untapped(topology: Topology) -> frozenset[Phase]:
    """What no tap of it sees in full: "entry" what begins to wait, "exit" what arrives."""
    seen = {tap.phase for tap in topology.taps if not tap.destination}
    phases: tuple[Phase, ...] = ("entry", "exit")
    return frozenset(phase for phase in phases if phase not in seen)


@dataclass(frozen=True)
class Observed:
    """How a topology is observed: which sides neither tap nor firehose sees.

    `is_silent`: nobody reads what sees the others, since `silent_since`, None where nobody ever
    did.
    """

    not_observed: frozenset[Phase]
    is_silent: bool = False
    silent_since: datetime | None = None


def observe(topologies: Collection[Topology], now: datetime) -> dict[int, Observed]:
    """Topology -> how it is observed now."""
    brokers = {one.broker_id for one in topologies}
    firehoses = {row.broker_id: row for row in Firehose.objects.filter(broker__in=brokers)}
    recordings = Recording.objects.filter(topology__in=topologies)
    tap_read_at = dict(recordings.values_list("topology", "read_at"))
    found = {}
    for one in topologies:
        not_observed, read_at = untapped(one), []
        if one.has_tap:
            read_at.append(tap_read_at.get(one.pk, one.applied_at))
        if not_observed and (firehose := firehoses.get(one.broker_id)):
            not_observed = frozenset()
            read_at.append(firehose.read_at or firehose.switched_on_at)
        silent = [at for at in read_at if at is None or now - at > SILENT_AFTER]
        since = min((at for at in silent if at is not None), default=None)
        found[one.pk] = Observed(not_observed, bool(silent), since)
    return found


def on_the_firehose(broker: Broker) -> list[Topology]:
    """The applied topologies of the vhost that are seen in full through its firehose only."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED).select_related("broker")
    return [topology for topology in applied if untapped(topology)]


def unobserved(*, since: datetime | None = None) -> list[Topology]:
    """The topologies of which nobody sees what leaves their delays, or saw it all `since`."""
    firehoses = dict(Firehose.objects.values_list("broker", "switched_on_at"))

    def is_seen(topology: Topology) -> bool:
        at = firehoses.get(topology.broker_id)
        return at is not None and (since is None or at <= since)

    return [topology for topology in Topology.unobserved() if not is_seen(topology)]


def is_presumed_delivered(now: datetime) -> Q:
    """Scheduled messages that count as delivered once they are due, because nothing observes it.

    All messages of topologies without observation; with the firehose, those that were due before it
    was enabled. Never those that are stuck.
    """
    not_observed, begun = find_unobserved(Topology.objects.all())
    return due_before(dict.fromkeys(not_observed, now) | begun, stuck_ranges())


def due_before(moments: Mapping[int, datetime], stuck: Collection[StuckRange]) -> Q:
    """Scheduled messages of these topologies, by id, that were due before their moments.

    Without those in the ranges of what is stuck.
    """
    found = Q(pk__in=[])
    for pk, at in moments.items():
        found |= Q(topology=pk, due_at__lt=at)
    if any(one.topology in moments for one in stuck):
        found &= ~is_stuck(stuck, max(moments.values()), before=moments)
    return found


def find_unobserved(topologies: Iterable[Topology]) -> tuple[tuple[int, ...], dict[int, datetime]]:
    """The topologies whose deliveries are not observed, and since when the firehose sees those of
    others.
    """
    firehoses = dict(Firehose.objects.values_list("broker", "switched_on_at"))
    blind = [one for one in topologies if one.state != State.PLANNED and not one.observes_arrivals]
    return (
        tuple(one.pk for one in blind if one.broker_id not in firehoses),
        {one.pk: firehoses[one.broker_id] for one in blind if one.broker_id in firehoses},
    )
