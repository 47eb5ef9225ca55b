from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from analytics.events import MessageEvent
from analytics.models import Minute, ScheduledMessage
from analytics.models.scheduled_message import REPLAYED, measure_lateness
from analytics.recorder.follow import index
from analytics.scheduled import projection
from analytics.scheduled.projection import close_moved
from analytics.scheduled.queries import listing
from analytics.scheduled.summaries import counts
from tests.analytics.builders import DELAY, NOON, a_trip, an_entry, an_event, an_exit, ms
from topology.models import Topology

pytestmark = pytest.mark.both_databases

MINUTE = timedelta(minutes=1)


def rows() -> list[ScheduledMessage]:
    return list(ScheduledMessage.objects.order_by("id"))


def test_an_entry_waits_until_its_exit(topology: Topology) -> None:
    entry, exit_ = a_trip(late=ms(7), size_bytes=12)
    assert projection.project(topology, [entry]) == []
    (row,) = listing.waiting([topology.broker])
    assert (row.key, row.due_at, row.destination, row.size) == ("m1", NOON + DELAY, "orders", 12)
    assert (measure_lateness(row), row.overdue_by(NOON + DELAY + MINUTE)) == (None, MINUTE)
    (closed,) = projection.project(topology, [exit_])
    assert (closed.row_id, measure_lateness(closed)) == (row.pk, ms(7))
    assert not listing.waiting([topology.broker]).exists()
    assert rows()[0].overdue_by(NOON + MINUTE) == timedelta(0)


def test_an_exit_that_comes_first_is_completed_by_its_entry(topology: Topology) -> None:
    entry, exit_ = a_trip(late=ms(7))
    assert projection.project(topology, [exit_]) == []
    assert not listing.waiting([topology.broker]).exists()
    (closed,) = projection.project(topology, [entry])
    assert (closed.entered_at, measure_lateness(closed)) == (NOON, ms(7))
    assert len(rows()) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_an_exit_recorded_at_the_moment_of_its_entry_completes_it(
    topology: Topology, order: int
) -> None:
    projection.project(topology, [an_entry(), an_exit(at=NOON)][::order])
    assert [(row.entered_at, row.left_at) for row in rows()] == [(NOON, NOON)]


def test_an_old_exit_without_entry_is_not_given_to_a_later_entry(topology: Topology) -> None:
    projection.project(topology, [an_exit(at=NOON - MINUTE)])
    projection.project(topology, [an_entry()])
    assert [row.left_at for row in listing.waiting([topology.broker])] == [None]


def test_what_is_stated_of_a_move_closes_no_second_row(topology: Topology) -> None:
    """Its row was closed with the fact: an equal message still waits."""
    same = {"message_id": "", "content_id": "same"}
    index(topology, [an_entry(at=NOON + ms(n), **same) for n in (0, 10)])
    close_moved(topology, ["same"])
    move = an_event(kind="moved", source="delayboard", recorded_at=NOON + MINUTE, **same)
    index(topology, [move, move])
    assert len(rows()) == 2
    assert [row.entered_at for row in listing.waiting([topology.broker])] == [NOON + ms(10)]


def test_of_equal_messages_without_id_the_oldest_leaves_first(topology: Topology) -> None:
    entries = [an_entry("", NOON + ms(n), content_id="same") for n in (20, 0, 10)]
    projection.project(topology, entries)
    projection.project(topology, [an_exit("", content_id="same")])
    assert [row.entered_at for row in listing.waiting([topology.broker])] == [
        NOON + ms(10),
        NOON + ms(20),
    ]


def test_each_attempt_is_a_trip_of_its_own(topology: Topology) -> None:
    projection.project(topology, [an_entry(attempt=1), an_entry(attempt=2)])
    projection.project(topology, [an_exit(attempt=2)])
    assert [row.attempt for row in listing.waiting([topology.broker])] == [1]


def test_a_message_of_another_topology_is_left_alone(topology: Topology) -> None:
    other = Topology.objects.create(
        broker=topology.broker, slug="other", kind="retry_pair", name="other", params={}
    )
    projection.project(topology, [an_entry()])
    projection.project(other, [an_exit()])
    assert listing.waiting([topology.broker], topology_slug="orders").count() == 1
    assert listing.waiting([topology.broker], topology_slug="other").count() == 0
    assert listing.waiting([]).count() == 0


@pytest.mark.django_db
@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(8)), cuts=st.sets(st.integers(1, 7)), has_ids=st.booleans())
def test_any_order_and_any_batches_end_in_the_same_trips(
    topology: Topology, order: list[int], cuts: set[int], has_ids: bool
) -> None:
    """Four trips, one after the other as the messages of one sender are; nothing is left open."""
    ScheduledMessage.objects.all().delete()
    events: list[MessageEvent] = []
    for number in range(4):
        name = f"m{number}" if has_ids else ""
        events += a_trip(name, NOON + number * MINUTE, ms(3), content_id=f"c{number}")
    shuffled = [events[place] for place in order]
    edges = [0, *sorted(cuts), 8]
    for start, end in pairwise(edges):
        projection.project(topology, shuffled[start:end])
    assert sorted(row.entered_at for row in rows() if row.entered_at) == [
        NOON + number * MINUTE for number in range(4)
    ]
    assert [measure_lateness(row) for row in rows()] == [ms(3)] * 4


def test_a_copy_recorded_again_after_a_crash_is_left_out(topology: Topology) -> None:
    trip = a_trip()
    projection.project(topology, trip)
    again = [an_event(kind=e.kind, recorded_at=e.recorded_at, redelivered=True) for e in trip]
    new = an_entry("m2", redelivered=True)
    assert projection.without_repeats(topology, [*again, new]) == [new]


def test_a_repeat_among_the_same_events_is_known_too(topology: Topology) -> None:
    entry, exit_ = a_trip()
    events = [entry, exit_, replace(exit_, redelivered=True)]
    assert projection.without_repeats(topology, events) == [entry, exit_]


def test_an_exit_is_no_repeat_while_the_same_id_waits_a_second_time(topology: Topology) -> None:
    projection.project(topology, a_trip())
    entry, exit_ = a_trip(at=NOON + MINUTE)
    again = replace(exit_, redelivered=True)
    assert projection.without_repeats(topology, [entry, again, again]) == [entry, again]
    twice = [entry, replace(entry, recorded_at=NOON + 2 * MINUTE), again, again]
    assert projection.without_repeats(topology, twice) == twice
    projection.project(topology, [entry])
    assert projection.without_repeats(topology, [again]) == [again]


def test_a_moved_message_leaves_the_list_and_its_counts(topology: Topology) -> None:
    entries = [an_entry("", NOON + ms(n), content_id="same") for n in (20, 0, 10)]
    projection.project(topology, [*entries, an_entry("other"), an_exit("left")])

    def count() -> list[int]:
        scope = counts.scope([topology.broker], NOON)
        return [scope.rows(until_at=NOON + DELAY + ms(11)).count(), scope.rows().count()]

    assert count() == [3, 4]
    close_moved(topology, [entries[0].key] * 2)
    left = [row for row in rows() if row.left_at and row.entered_at]
    assert {row.entered_at for row in left} == {NOON, NOON + ms(10)}
    assert count() == [1, 2]
    # The history of waiting messages is computed from what entered and left.
    assert Minute.objects.get(topology=topology).left == 2
    close_moved(topology, ["left", "unknown"])
    assert count() == [1, 2]


def test_a_replayed_message_that_enters_again_is_no_repeat_of_its_first_life(
    topology: Topology,
) -> None:
    projection.project(topology, [an_entry()])
    again = an_entry(at=NOON + DELAY, redelivered=True, replay_id="r1")
    assert projection.without_repeats(topology, [again]) == [again]


def test_a_redelivered_copy_without_id_may_be_another_message_and_stays(
    topology: Topology,
) -> None:
    projection.project(topology, [an_entry("")])
    again = an_entry("", redelivered=True)
    assert projection.without_repeats(topology, [again]) == [again]


def test_a_tracked_message_is_observed_step_by_step(topology: Topology) -> None:
    entry, exit_ = a_trip(late=ms(12), tracking_id="t1")
    assert listing.read_observations(["t1"]) == {}
    projection.project(topology, [entry])
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert (seen.entered_at, seen.due_at, seen.arrived_at, seen.lateness) == (
        NOON,
        NOON + DELAY,
        None,
        None,
    )
    projection.project(topology, [exit_])
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert (seen.arrived_at, seen.lateness, seen.attempt) == (NOON + DELAY + ms(12), ms(12), 1)
    assert seen.caught_up


def test_one_side_recorded_from_a_backlog_makes_the_lateness_doubtful(topology: Topology) -> None:
    entry, exit_ = a_trip(tracking_id="t1")
    late = an_exit(at=exit_.recorded_at, tracking_id="t1", caught_up=False)
    projection.project(topology, [entry, late])
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert not seen.caught_up


def test_the_observation_is_of_the_first_trip_and_not_of_a_retry(topology: Topology) -> None:
    projection.project(topology, a_trip(tracking_id="t1", late=ms(1)))
    projection.project(topology, [an_entry(at=NOON + MINUTE, attempt=2, tracking_id="t1")])
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert (seen.attempt, seen.lateness) == (1, ms(1))


def test_a_tracked_message_past_every_delay_is_seen_to_arrive_at_once(topology: Topology) -> None:
    passing = an_event(
        kind="published", attempt=0, requested_delay_ms=0, tracking_id="t1", message_id=""
    )
    projection.project(topology, [passing, an_event(kind="published", attempt=0)])
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert (seen.entered_at, seen.arrived_at, seen.lateness) == (NOON, NOON, timedelta(0))
    assert len(rows()) == 1


def test_a_replayed_message_past_every_delay_has_left_at_once(topology: Topology) -> None:
    projection.project(topology, [an_event(kind="published", attempt=0, replay_id="r1")])
    (row,) = rows()
    assert (row.entered_at, row.left_at, row.tracking_id) == (NOON, NOON, f"{REPLAYED}r1")


def test_nobody_is_observed_by_an_empty_tracking_id(topology: Topology) -> None:
    projection.project(topology, [an_entry()])
    assert listing.read_observations([""]) == {}


def test_pages_follow_each_other_without_gap_or_overlap(topology: Topology) -> None:
    projection.project(topology, [an_entry(f"m{n}", NOON + ms(n // 3)) for n in range(10)])
    waiting = listing.waiting([topology.broker])
    seen: list[str] = []
    last = None
    while page := list(listing.after_row(waiting, last)[:4]):
        seen += [row.key for row in page]
        last = page[-1]
    assert seen == [f"m{n}" for n in range(10)]
    assert list(listing.after_row(waiting.reverse(), last)) == list(waiting.reverse()[1:])
