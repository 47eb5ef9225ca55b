from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from analytics.models import Firehose, ScheduledMessage
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.filter import parse
from analytics.scheduled.rows import due_counts
from analytics.scheduled.summaries import counts, histogram, summary
from tests.analytics.builders import NOON, ms
from topology.models import Broker, State, Topology

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
    """Waiting rows, due so many milliseconds from noon, and their counts; one more has left."""
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
    # As an index does: many at once, and more to the same minutes later.
    for some in (rows[::2], rows[1::2]):
        due_counts.change(
            topology, Counter((row.destination, row.due_at) for row in some if row.due_at)
        )


def a_topology() -> Topology:
    broker = Broker.objects.create(
        slug="main", name="Main", host="127.0.0.1", management_url="http://127.0.0.1:15672"
    )
    params = {"name": "orders", "delay": "5s", "routing_key": "orders"}
    return Topology.objects.create(
        broker=broker, slug="orders", kind="retry_pair", name="orders", params=params
    )


class Sums(TestCase):
    @settings(max_examples=30, deadline=None)
    @given(st.lists(MOMENTS, max_size=40), st.lists(MOMENTS, min_size=1, max_size=4))
    def test_sums_are_what_counting_the_rows_would_say(
        self, moments: list[int], points: list[int]
    ) -> None:
        topology = a_topology()
        put(topology, moments)
        scope = counts.scope([topology.broker], NOON)
        expected = [sum(moment < point for moment in moments) for point in points]
        assert counts.before(scope, [NOON + ms(point) for point in points]) == expected
        assert counts.before(scope, [None]) == [len(moments)]
        for point, number in zip(points, expected, strict=True):
            at = NOON + ms(point)
            assert counts.due_before(scope, at, [topology.pk]) == {topology.pk: number}

    @settings(max_examples=20, deadline=None)
    @given(st.lists(MOMENTS, max_size=40))
    def test_the_numbers_over_the_list_are_those_of_the_list(self, moments: list[int]) -> None:
        topology = a_topology()
        put(topology, moments)
        brokers = [topology.broker]
        for query in ({}, {"overdue": "1"}, {"from": "-30m", "until": "+90m"}, {"from": "now"}):
            wanted = parse(query, NOON)
            listed = listing.filter_waiting(brokers, wanted, NOON).count()
            assert summary.of_counts(counts.scope(brokers, NOON), wanted).matching == listed

    @settings(max_examples=20, deadline=None)
    @given(st.lists(MOMENTS, min_size=1, max_size=40), st.sampled_from([HOUR, DAY, 7 * DAY]))
    def test_bars_hold_what_falls_due_in_them(self, moments: list[int], span: timedelta) -> None:
        topology = a_topology()
        put(topology, moments)
        scope = counts.scope([topology.broker], NOON)
        drawn = histogram.of_counts(scope, NOON, NOON + span)
        for bar in drawn.bars:
            within = [m for m in moments if bar.from_at <= NOON + ms(m) < bar.until_at]
            assert bar.total == len(within)
        assert len(drawn.series) <= histogram.NAMED + 1


@pytest.mark.django_db
def test_of_what_nobody_sees_leave_only_what_is_not_due_counts(topology: Topology) -> None:
    put(topology, [-90_000_000, -30_000, 1, 30_000, 90_000_000])
    not_observed = counts.Scope(seen=(), not_observed=(topology.pk,), now=NOON)
    points = [NOON - DAY, NOON, NOON + ms(2), NOON + HOUR, None]
    assert counts.before(not_observed, points) == [0, 0, 1, 2, 3]
    assert counts.by_topology(not_observed) == {topology.pk: (3, 0)}
    assert counts.due_before(not_observed, NOON + ms(2), [topology.pk]) == {topology.pk: 1}
    edges = counts.edges(not_observed)
    assert edges is not None
    assert edges[0] == NOON


@pytest.mark.django_db
def test_one_destination_is_counted_by_itself(topology: Topology) -> None:
    put(topology, [1000 * n for n in range(14)])
    scope = counts.scope([topology.broker], NOON, destination="parked_messages")
    assert counts.before(scope, [None]) == [2]
    whole = counts.scope([topology.broker], NOON)
    assert counts.destinations(whole, None, None) == dict.fromkeys(sorted(DESTINATIONS), 2)
    assert counts.scope([], NOON).seen == ()


@pytest.mark.parametrize(
    ("span", "bars"), [(HOUR, 60), (DAY, 24), (7 * DAY, 56), (365 * DAY, 53), (36500 * DAY, 100)]
)
def test_a_picture_has_neither_too_few_bars_nor_too_many(span: timedelta, bars: int) -> None:
    width = timedelta(seconds=histogram.width_for(span))
    assert -(-span // width) == bars


@pytest.mark.parametrize(
    ("waiting", "within", "span"),
    [
        (0, (0, 0, 0), "hour"),
        (10, (6, 6, 6), "hour"),
        (10, (5, 6, 7), "day"),
        (10, (0, 5, 6), "week"),
        (10, (0, 0, 5), "all"),
    ],
)
def test_the_default_span_shows_most_of_what_waits(
    waiting: int, within: tuple[int, ...], span: str
) -> None:
    assert histogram.span_for(waiting, within) == span


@pytest.mark.django_db
def test_what_was_due_before_the_firehose_looked_is_neither_listed_nor_counted() -> None:
    topology = a_topology()
    params = {"exchange": "", "keys": "orders"}
    Topology.objects.update(kind="hold_queues", params=params, state=State.APPLIED)
    minutes = (-90, -31, -30.5, -29.5, -29, -2, 5)
    put(topology, [round(60_000 * at) for at in minutes])
    broker = topology.broker

    def numbers() -> tuple[int, int, int, dict[int, tuple[int, int]]]:
        scope = counts.scope([broker], NOON)
        total = summary.of_counts(scope, parse({}, NOON))
        listed = listing.waiting([broker], now=NOON).count()
        return listed, total.waiting, total.overdue, counts.by_topology(scope)

    assert numbers() == (1, 1, 0, {topology.pk: (1, 0)})
    Firehose.objects.create(broker=broker, switched_on_by="ada")
    Firehose.objects.update(switched_on_at=NOON - ms(30 * 60_000))
    assert numbers() == (4, 4, 3, {topology.pk: (4, 3)})
    Firehose.objects.update(switched_on_at=NOON - ms(30 * 60_000 + 40_000))
    assert numbers() == (5, 5, 4, {topology.pk: (5, 4)})
    for query in ({"overdue": "1"}, {"from": "-40m", "until": "+1h"}, {"until": "-30m"}):
        wanted = parse(query, NOON)
        asked = summary.of_counts(counts.scope([broker], NOON), wanted).matching
        assert asked == listing.filter_waiting([broker], wanted, NOON).count()
