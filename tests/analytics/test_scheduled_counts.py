from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from analytics.models import Firehose, ScheduledMessage
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import parse
from analytics.scheduled.summaries import counts
from tests.analytics.builders import NOON, ms
from topology.content.text import NARROW_SPACE
from topology.models import Broker, MissingBinding, State, Topology

pytestmark = pytest.mark.both_databases

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Milliseconds from now, many of them near the turns of minutes and hours.
MOMENTS = st.one_of(
    st.integers(-7_200_000, 7_200_000),
    st.integers(-200, 200).map(lambda n: n * 60_000),
    st.integers(-10 * 86_400_000, 10 * 86_400_000),
)
DESTINATIONS = ("orders", "parked_messages", "refunds", "returns", "mail", "fax", "post")


def put(topology: Topology, moments: list[int]) -> None:
    """Waiting rows, due so many milliseconds from noon; one more has left."""
    rows = [
        ScheduledMessage(
            broker=topology.broker,
            topology=topology,
            key=str(place),
            content_id=str(place),
            attempt=1,
            requested_delay=HOUR,
            entered_at=NOON - DAY,
            due_at=NOON + ms(moment),
            destination=DESTINATIONS[place % 7],
        )
        for place, moment in enumerate(moments)
    ]
    ScheduledMessage.objects.bulk_create(rows)
    for row in rows[:1]:
        left = ScheduledMessage.objects.get(key=row.key)
        left.pk, left.key, left.left_at = None, "left", NOON
        left.save(force_insert=True)


def a_topology() -> Topology:
    broker = Broker.objects.create(
        slug="main",
        name="Main",
        amqp_addresses="127.0.0.1",
        management_urls="http://127.0.0.1:15672",
    )
    params = {"name": "orders", "delay": "5s", "routing_key": "orders"}
    return Topology.objects.create(
        broker=broker, slug="orders", kind="retry_pair", name="orders", params=params
    )


class Sums(TestCase):
    @settings(max_examples=20, deadline=None)
    @given(st.lists(MOMENTS, max_size=40))
    def test_the_numbers_over_the_list_are_those_of_the_list(self, moments: list[int]) -> None:
        topology = a_topology()
        put(topology, moments)
        brokers = [topology.broker]
        for query in ({}, {"overdue": "1"}, {"from": "-30m", "until": "+90m"}, {"from": "now"}):
            wanted = parse(query, NOON)
            listed = listing.filter_waiting(brokers, wanted, NOON).count()
            assert counts.of_counts(counts.scope(brokers, NOON), wanted).matching == listed


@pytest.mark.django_db
def test_of_what_nobody_sees_leave_only_what_is_not_due_counts(topology: Topology) -> None:
    put(topology, [-90_000_000, -30_000, 1, 30_000, 90_000_000])
    Topology.objects.update(kind="hold_queues", params={"exchange": "", "keys": "orders"})
    Topology.objects.update(state=State.APPLIED)
    topology.refresh_from_db()
    scope = counts.scope_of([topology], NOON)
    assert scope.not_observed == (topology.pk,)
    points = [NOON - DAY, NOON, NOON + ms(2), NOON + HOUR, None]
    assert [scope.rows(until_at=at).count() for at in points] == [0, 0, 1, 2, 3]
    assert scope.by_topology == {topology.pk: 3}
    MissingBinding.objects.create(
        topology=topology, destination="parked_messages", since_at=NOON, from_at=NOON - HOUR
    )
    scope = counts.scope_of([topology], NOON)
    assert (scope.rows().count(), scope.stuck_rows().count()) == (4, 1)


@pytest.mark.django_db
def test_one_destination_is_counted_by_itself(topology: Topology) -> None:
    put(topology, [1000 * n for n in range(14)])
    scope = counts.scope([topology.broker], NOON, destination="parked_messages")
    assert counts.count(scope.rows()) == 2
    assert counts.scope([], NOON).ids == ()


@pytest.mark.django_db
def test_a_count_is_exact_up_to_a_number_and_says_so_above_it(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(topology, [1000 * n for n in range(5)])
    scope = counts.scope([topology.broker], NOON)
    assert counts.find_horizon(scope, NOON, NOON + DAY) == NOON + DAY
    for most, text, horizon in ((5, "5", DAY), (3, "more than 3", timedelta(seconds=3))):
        monkeypatch.setattr(counts, "MOST", most)
        assert counts.describe(counts.count(scope.rows())) == text
        assert counts.find_horizon(scope, NOON, NOON + DAY) == NOON + horizon
        total = counts.of_counts(scope, parse({"from": "now"}, NOON))
        assert counts.describe(total.matching) == text
    assert counts.count(scope.rows()) == 4
    monkeypatch.undo()
    assert counts.describe(100_001) == f"more than 100{NARROW_SPACE}000"


@pytest.mark.django_db
def test_what_was_due_before_the_firehose_looked_is_neither_listed_nor_counted() -> None:
    topology = a_topology()
    params = {"exchange": "", "keys": "orders"}
    Topology.objects.update(kind="hold_queues", params=params, state=State.APPLIED)
    minutes = (-90, -31, -30.5, -29.5, -29, -2, 5)
    put(topology, [round(60_000 * at) for at in minutes])
    broker = topology.broker

    def numbers() -> tuple[int, int, int, int]:
        scope = counts.scope([broker], NOON)
        total = counts.of_counts(scope, parse({}, NOON))
        listed = listing.waiting([broker], now=NOON).count()
        return listed, total.waiting, total.overdue, scope.by_topology[topology.pk]

    assert numbers() == (1, 1, 0, 1)
    Firehose.objects.create(broker=broker, switched_on_by="ada")
    Firehose.objects.update(switched_on_at=NOON - ms(30 * 60_000))
    assert numbers() == (4, 4, 3, 4)
    Firehose.objects.update(switched_on_at=NOON - ms(30 * 60_000 + 40_000))
    assert numbers() == (5, 5, 4, 5)
    for query in ({"overdue": "1"}, {"from": "-40m", "until": "+1h"}, {"until": "-30m"}):
        wanted = parse(query, NOON)
        asked = counts.of_counts(counts.scope([broker], NOON), wanted).matching
        assert asked == listing.filter_waiting([broker], wanted, NOON).count()
