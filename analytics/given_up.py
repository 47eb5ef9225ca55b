"""Which queues get the messages that consumers give up, and whether all of them were observed.

A consumer that publishes the last failure elsewhere and acknowledges it looks like one that
succeeded. Only what arrived in the parking queue shows the difference, and only the firehose shows
all of it: an empty queue may have been emptied by a program that nobody saw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analytics.models import Firehose, Gap
from topology import snapshots
from topology.broker.errors import BrokerError
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot
from topology.structure.ends import Ends, find_ends


@dataclass(frozen=True)
class GivenUp:
    """`parking` are the parking queues by the slug of a broker. `observed` are the slugs of the
    topologies of which each message that was given up is in the log.
    """

    parking: Mapping[str, Sequence[str]]
    observed: frozenset[str]


def find_given_up(begin: datetime, end: datetime) -> GivenUp:
    """The queues of given-up messages from `begin` to `end`, as the brokers are now; none of a
    broker without an answer.
    """
    rows = Topology.objects.exclude(state=State.PLANNED).select_related("broker")
    by_broker: dict[Broker, list[Topology]] = defaultdict(list)
    for row in rows:
        by_broker[row.broker].append(row)
    brokers = Firehose.objects.filter(switched_on_at__lte=begin, read_at__gte=end)
    of_firehoses = Topology.objects.filter(broker__in=brokers.values("broker"))
    lost = Gap.objects.filter(from_at__lt=end, until_at__gt=begin)
    recorded = set(of_firehoses.values_list("pk", flat=True)) - set(
        lost.values_list("topology", flat=True)
    )
    parking, observed = {}, set[str]()
    for broker, topologies in by_broker.items():
        try:
            snapshot = snapshots.recent(broker)
        except BrokerError:
            continue
        ends = find_ends(snapshot)
        of_topologies = _find_parking(ends, snapshot, topologies)
        queues = {queue for found in of_topologies.values() for queue in found}
        # The firehose copies what consumers publish, and no message that RabbitMQ dead-letters.
        published = queues - ends.feeds.keys()
        parking[broker.slug] = sorted(queues)
        observed |= {
            one.slug
            for one in topologies
            if (found := of_topologies[one.slug]) and found <= published and one.pk in recorded
        }
    return GivenUp(parking, frozenset(observed))


def _find_parking(
    ends: Ends, snapshot: Snapshot, topologies: Collection[Topology]
) -> dict[str, frozenset[str]]:
    """Slug of a topology -> its parking queues; none where one of the work queues shows none."""
    found: dict[str, frozenset[str]] = {}
    for one in topologies:
        try:
            params = one.parsed
        except ParamsError:
            found[one.slug] = frozenset()
            continue
        own = getattr(params, "parking", "")
        of_works = [
            {own} if own else set(ends.find_parking(snapshot.definitions, work))
            for work in one.pattern.targets(params)
        ]
        found[one.slug] = frozenset().union(*of_works) if all(of_works) else frozenset()
    return found
