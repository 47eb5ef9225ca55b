"""What of a topology anybody sees: its taps, and the firehose of its vhost where that is on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from django.db.models import Q

from analytics.models import Firehose
from topology.models import Broker, State, Topology
from topology.patterns.pattern import Phase

SILENT_AFTER = timedelta(seconds=4)


def untapped(topology: Topology) -> frozenset[Phase]:
    """What no tap of it sees: "entry" what begins to wait, "exit" what arrives."""
    seen = {tap.phase for tap in topology.taps}
    phases: tuple[Phase, ...] = ("entry", "exit")
    return frozenset(phase for phase in phases if phase not in seen)


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


def left_unseen(now: datetime) -> Q:
    """Scheduled messages that count as gone once they are due, since nobody saw them leave.

    That is all of the topologies that nobody observes; where the firehose does, those that
    were due before it was switched on.
    """
    unseen, begun = overlooked(Topology.objects.all())
    return due_before(dict.fromkeys(unseen, now) | begun)


def due_before(moments: Mapping[int, datetime]) -> Q:
    """Scheduled messages of these topologies, by id, that were due before their moments."""
    found = Q(pk__in=[])
    for pk, at in moments.items():
        found |= Q(topology=pk, due_at__lt=at)
    return found


def overlooked(topologies: Iterable[Topology]) -> tuple[tuple[int, ...], dict[int, datetime]]:
    """Those of which nobody sees what leaves, and since when the firehose sees it of others."""
    firehoses = dict(Firehose.objects.values_list("broker", "switched_on_at"))
    blind = [one for one in topologies if one.state != State.PLANNED and not one.observes_arrivals]
    return (
        tuple(one.pk for one in blind if one.broker_id not in firehoses),
        {one.pk: firehoses[one.broker_id] for one in blind if one.broker_id in firehoses},
    )


def silent_firehoses(brokers: Iterable[Broker], now: datetime) -> Collection[Firehose]:
    """Those that are wanted and that nobody reads."""
    rows = Firehose.objects.filter(broker__in=brokers).select_related("broker")
    return [row for row in rows if now - (row.read_at or row.switched_on_at) > SILENT_AFTER]
