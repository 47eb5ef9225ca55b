"""What the first page says is wrong, and what will be."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from analytics.disk import DiskSpace
from analytics.models import DueCount, Recording, ScheduledMessage
from analytics.scheduled.rows.due_counts import change
from analytics.scheduled.summaries import counts
from delayboard.models import BackgroundTask
from delayboard.now import board
from delayboard.now.problems import Problem, find_overdue
from delayboard.now.system import describe_details
from delayboard.templatetags.delayboard import link_url
from tests.builders import make_pair
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.models import Broker, MissingBinding, State, Topology
from topology.operations.drift import DriftCheck
from topology.snapshots import Latest

DISK_ERROR = "Delayboard cannot write the event log in /log: no space left on device."


@pytest.fixture(autouse=True)
def a_broker_that_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Latest(None, timezone.now())
    monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, age: [known for _ in brokers])
    with_room(monkeypatch, 100 * 10**9)


def with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(board, "read_disk_space", lambda folder: DiskSpace(free, 200 * 10**9))


def a_background_task(key: str, *, error: str = "", **details: Any) -> BackgroundTask:
    at = timezone.now()
    return BackgroundTask.objects.create(
        key=key, name=key.title(), beat_at=at, last_error=error, details=details
    )


def overview(broker: Broker) -> board.Overview:
    return board.overview([broker], timezone.now(), timedelta(seconds=5))


def figures(broker: Broker) -> dict[str, int | None]:
    return {one.key: one.number for one in overview(broker).counters}


def sentences(found: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(trouble.sentence for trouble in found)


def test_a_disk_that_fills_up_is_a_warning_and_a_full_one_a_trouble(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_background_task("facts")
    assert (overview(broker).troubles, overview(broker).warnings) == ((), ())
    with_room(monkeypatch, 3 * 10**8)
    seen = overview(broker)
    assert seen.troubles == ()
    assert "nearly full: 300\u00a0MB of 200\u00a0GB are free" in seen.warnings[0].sentence
    with_room(monkeypatch, 99)
    seen = overview(broker)
    assert seen.warnings == ()
    assert "The disk of the event log is full" in seen.troubles[0].sentence


def test_one_reason_of_several_background_tasks_is_one_sentence(broker: Broker) -> None:
    for key in ("a", "b", "c"):
        a_background_task(key, error=DISK_ERROR)
    a_background_task("d", error="Something else.")
    assert sentences(overview(broker).troubles) == (
        f"A and 2 more fail: {DISK_ERROR}",
        "D fails: Something else.",
    )


def test_being_behind_is_said_beyond_a_few_seconds_only(broker: Broker) -> None:
    a_background_task("index", behind_seconds=2.9, behind_bytes=10)
    assert overview(broker).warnings == ()
    BackgroundTask.objects.update(details={"behind_seconds": 75.4})
    assert sentences(overview(broker).warnings) == (
        "Index is 1m 15s behind, so its data is that old.",
    )


def test_what_waits_comes_from_the_counts_and_from_no_row(broker: Broker, pair: Topology) -> None:
    at = timezone.now()
    change(pair, {("orders", at - timedelta(hours=2)): 3, ("orders", at + timedelta(hours=2)): 4})
    change(pair, {("orders", at + timedelta(minutes=30)): 2})
    assert figures(broker)["scheduled"] == 9
    assert figures(broker)["due_within_hour"] == 2
    assert figures(broker)["overdue"] == 3
    due = overview(broker).due
    assert (sum(due.numbers), due.path.count("M")) == (2, 1)
    assert due.description.startswith("2 messages, at most 2 in one minute (in ")
    DueCount.objects.all().delete()
    assert {figures(broker)[key] for key in ("scheduled", "due_within_hour", "overdue")} == {0}
    assert overview(broker).due.description == "No message is due in the next hour."


def test_the_bars_of_the_next_hour_add_up_to_its_counter(broker: Broker, pair: Topology) -> None:
    at = timezone.now().replace(second=30, microsecond=0)
    for number, seconds in enumerate((-20, -10, 10, 3590, 3610)):
        due_at = at + timedelta(seconds=seconds)
        ScheduledMessage.objects.create(
            broker=broker,
            topology=pair,
            key=f"m{number}",
            attempt=1,
            destination="orders",
            entered_at=at - timedelta(minutes=5),
            due_at=due_at,
            requested_delay=timedelta(minutes=5),
        )
        change(pair, {("orders", due_at): 1})
    seen = board.overview([broker], at, timedelta(seconds=5))
    assert next(one.number for one in seen.counters if one.key == "due_within_hour") == 2
    assert (seen.due.numbers[0], sum(seen.due.numbers)) == (1, 2)


def test_what_a_background_task_says_of_itself_is_for_people() -> None:
    reported: dict[str, object] = {
        "behind_bytes": 1_234_567,
        "behind_seconds": 75.34,
        "caught_up": False,
    }
    reported |= {"removed": {}, "trouble": "", "last_at": ""}
    assert describe_details(reported) == "1.2\u00a0MB behind, 1m 15s behind, not caught up"


def test_stuck_messages_are_the_first_trouble(broker: Broker, pair: Topology) -> None:
    a_background_task("a", error="Something failed.")
    at = timezone.now()
    MissingBinding.objects.create(topology=pair, destination="sales", since_at=at, stuck=3)
    first, second, *_ = overview(broker).troubles
    assert first.sentence == (
        f"orders: Destination “sales” has no binding since {at:%Y-%m-%d %H:%M:%S} UTC: "
        "3 messages are stuck."
    )
    assert first.link is not None
    assert link_url(first.link) == f"/topologies/{pair.slug}/destinations/"
    assert second.sentence == "A fails: Something failed."


def test_many_destinations_are_counted_and_a_restored_one_is_a_warning(
    broker: Broker, pair: Topology
) -> None:
    a_background_task("a")
    at = timezone.now()
    for number in range(5):
        MissingBinding.objects.create(
            topology=pair, destination=f"d{number}", since_at=at, stuck=10 - number
        )
    seen = overview(broker).troubles
    assert len(seen) == 4
    assert seen[3].sentence == (
        "orders: 2 more destinations cannot be reached (13 stuck, 0 waiting)."
    )
    MissingBinding.objects.exclude(destination="d0").delete()
    MissingBinding.objects.update(restored_at=at)
    assert overview(broker).troubles == ()
    assert "10 messages are still stuck" in overview(broker).warnings[0].sentence


def test_overdue_messages_and_drift_are_troubles(broker: Broker, pair: Topology) -> None:
    a_background_task("a")
    at = timezone.now()
    Recording.objects.create(topology=pair, read_at=at)
    change(pair, {("orders", at - timedelta(hours=2)): 3})
    (overdue,) = overview(broker).troubles
    assert overdue.sentence == "orders: 3 messages are overdue by a minute or more."
    assert overdue.link is not None
    assert link_url(overdue.link) == f"/scheduled/?topology={pair.slug}&overdue=1"
    snapshot = a_snapshot(pair.definitions.without([("queue", "orders-retry")]))
    DriftCheck().update_rows(broker, snapshot)
    drift, _ = overview(broker).troubles
    assert drift.link is not None
    assert link_url(drift.link) == f"/topologies/{pair.slug}/#plan"
    assert drift.sentence.startswith("orders: ")
    assert "of 9 objects is missing" in drift.sentence


def test_what_fell_due_a_moment_ago_is_no_trouble(broker: Broker, pair: Topology) -> None:
    # The counts are by whole minutes, and a minute has just begun.
    at = timezone.now().replace(second=0, microsecond=300_000)
    for place, age in enumerate((0.4, 30, 61)):
        due_at = at - timedelta(seconds=age)
        ScheduledMessage.objects.create(
            broker=broker,
            topology=pair,
            key=str(place),
            content_id=str(place),
            destination="orders",
            attempt=1,
            requested_delay=timedelta(hours=1),
            entered_at=at - timedelta(hours=1),
            due_at=due_at,
        )
        change(pair, {("orders", due_at): 1})
    (trouble,) = find_overdue(counts.scope_of([pair], at), [pair])
    assert trouble.sentence == "orders: 1 message is overdue by a minute or more."


def test_two_hundred_topologies_cost_as_many_queries_as_two(
    broker: Broker, pair: Topology, django_assert_max_num_queries: Any
) -> None:
    a_background_task("a")
    for number in range(200):
        one = make_pair(broker, name=f"orders-{number}")
        MissingBinding.objects.create(topology=one, destination="d", since_at=timezone.now())
    Topology.objects.update(state=State.APPLIED)
    with django_assert_max_num_queries(32):
        assert len(overview(broker).troubles) == 200
