"""What the first page says is wrong, and what will be."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from analytics.disk import DiskSpace
from analytics.models import Recording, ScheduledMessage
from analytics.scheduled import projection
from analytics.scheduled.pages.lines import load_list
from analytics.scheduled.projection import close_rows
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import parse
from analytics.scheduled.summaries import counts
from analytics.views.due_calendar import due_calendar
from delayboard.models import BackgroundTask
from delayboard.now import board, counters
from delayboard.now.problems import Problem, find_overdue
from delayboard.now.system import describe_details
from delayboard.templatetags.delayboard import link_url
from tests.analytics.builders import an_entry, an_exit
from tests.builders import make_broker, make_pair
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.models import Broker, MissingBinding, State, Topology
from topology.operations.provision import DriftCheck
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.redaction import NOTHING
from topology.snapshot import QueueNumbers
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


def test_more_than_can_be_counted_is_no_number(
    broker: Broker, pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    entries = [an_entry(f"m{n}", now - timedelta(hours=1), due_at=now) for n in range(4)]
    projection.project(pair, entries)
    for module in (counts, counters):
        monkeypatch.setattr(module, "MOST", 3)
    seen = board.overview([broker], now + timedelta(seconds=5), timedelta(seconds=5))
    found = {one.key: (one.number, one.text, one.is_bad) for one in seen.counters}
    assert found["scheduled"] == (4, "4", False)
    assert found["overdue"] == (None, "more than 3", True)
    assert found["due_within_hour"] == (0, "0", False)


def test_counters_calendar_and_list_have_the_same_messages(broker: Broker, pair: Topology) -> None:
    """Of rows that left, were cancelled or moved, are overdue, or due where nobody sees it."""
    now = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
    blind = create_topology(None, broker, delay_levels.KIND, levels.Params("own", "shop"))
    Topology.objects.update(state=State.APPLIED)
    for topology in (pair, blind):
        Recording.objects.create(topology=topology, read_at=now)
    hour, dues = timedelta(hours=1), (-3700, -25, -5, 5, 40, 1800, 3595, 3605, 50_000, 700_000)
    for topology in (pair, blind):
        for name in ("waits", "leaves", "is cancelled", "is moved"):
            entries = [
                an_entry(
                    f"{topology.slug} {name} {seconds}",
                    now - 2 * hour,
                    due_at=now + timedelta(seconds=seconds),
                    requested_delay_ms=3_600_000,
                )
                for seconds in dues
            ]
            projection.project(topology, entries)
        rows = ScheduledMessage.objects.filter(topology=topology)
        left = rows.filter(message_id__contains="leaves")
        projection.project(topology, [an_exit(row.message_id, now) for row in left])
        taken = rows.filter(message_id__regex="cancelled|moved").values_list("pk", flat=True)
        close_rows(topology, list(taken))
        later = now + timedelta(minutes=50)
        projection.project(topology, [an_entry(f"{topology.slug} again", now, due_at=later)])

    def count(**query: str) -> int:
        return listing.filter_waiting([broker], parse(query, now), now).count()

    seen = board.overview([broker], now, timedelta(seconds=5))
    counted = {one.key: one.number for one in seen.counters}
    total = load_list([broker], parse({}, now), now, hidden={broker.pk: NOTHING}).summary
    assert total is not None
    assert count(**{"from": "now", "until": "+1h"}) == 2 * 5
    assert {counted["due_within_hour"], total.due_counts[0]} == {2 * 5}
    assert total.due_counts[2] == count(**{"from": "now", "until": "+7d"})
    waiting = sum(line.waiting or 0 for line in seen.lines)
    assert {counted["scheduled"], total.waiting, waiting} == {count()}
    assert {counted["overdue"], total.overdue} == {count(overdue="1")}
    # What the worker samples, of many brokers at once.
    sampled = board.count_each([make_broker(name="empty"), broker], now, timedelta(seconds=5))
    assert sampled[broker] == {key: one for key, one in counted.items() if one is not None}
    calendar = due_calendar([broker], list(Topology.objects.all()), parse({}, now), now)
    assert calendar is not None
    assert calendar.total == count(**{"from": "2026-11-20", "until": "2026-11-27"})


def test_what_waits_where_entries_are_not_recorded_is_what_the_queues_hold(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"queue": "mails", "delays": "1h"}
    blind = Topology.objects.create(
        broker=broker,
        slug="mails",
        kind="delay_queues",
        name="mails",
        params=values,
        state="applied",
    )

    def lines(known: Latest) -> list[int | None]:
        monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, age: [known for _ in brokers])
        seen = overview(broker)
        return [line.waiting for line in seen.lines]

    numbers = {queue.name: QueueNumbers(messages=7) for queue in blind.definitions.queues}
    there = a_snapshot(blind.definitions, numbers)
    assert lines(Latest(there, timezone.now())) == [7]
    assert figures(broker)["retrying"] == 7
    assert lines(Latest(there, timezone.now(), "No answer.")) == [None]
    assert figures(broker)["retrying"] is None


def test_what_a_background_task_says_of_itself_is_for_people() -> None:
    reported: dict[str, object] = {
        "behind_bytes": 1_234_567,
        "behind_seconds": 75.34,
        "caught_up": False,
    }
    reported |= {"removed": {}, "trouble": "", "last_at": ""}
    assert describe_details(reported) == "1.2\u00a0MB behind, 1m 15s behind, not caught up"
    reported = {"passed": 3, "late_p99_ms": 511, "cleaned_at": "2026-11-26T12:54:34+00:00"}
    assert describe_details(reported | {"parked_messages_bytes": 0}) == (
        "forwarded 3, 99th percentile 511ms, cleaned at 12:54:34, "
        "0\u00a0B in parked messages at that time"
    )


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
    MissingBinding.objects.create(topology=pair, since_at=at, stuck=2)
    assert figures(broker)["stuck"] == 3 + 2
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
    due_at = at - timedelta(hours=2)
    projection.project(pair, [an_entry(f"m{n}", due_at, due_at=due_at) for n in range(3)])
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
    at = timezone.now()
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
    with django_assert_max_num_queries(37):
        assert len(overview(broker).troubles) == 200
