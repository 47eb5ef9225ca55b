from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analytics.events import encode
from analytics.log import hour_folder
from analytics.models import (
    Firehose,
    Gap,
    LogPosition,
    Minute,
    Probe,
    Recording,
    ScheduledMessage,
)
from analytics.scheduled import projection
from analytics.scheduled.summaries import completeness, counts
from analytics.scheduled.summaries.completeness import Doubt, find_doubts
from tests.analytics.builders import an_entry
from topology.models import State, Topology
from topology.snapshot import QueueNumbers, Snapshot
from topology.snapshots import Latest

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 11, 20, 12, 30, 30, tzinfo=UTC)
AGO = NOW - timedelta(minutes=10)


@pytest.fixture
def applied(topology: Topology, event_log: Path) -> Topology:
    """Three messages of an hour's delay wait in it, and it is read."""
    topology.state, topology.applied_at = State.APPLIED, NOW - timedelta(days=1)
    topology.params |= {"delay": "1h"}
    topology.save()
    Recording.objects.create(topology=topology, read_at=NOW)
    entries = [an_entry(f"m{n}", AGO, requested_delay_ms=3_600_000) for n in range(3)]
    projection.project(topology, entries)
    return topology


def doubts(
    topology: Topology, queued: int | None, *, age: float = 3.0, rate: float = 0.0, error: str = ""
) -> list[Doubt]:
    """With so many messages in the delay queue, seen so many seconds ago."""
    taken_at = NOW - timedelta(seconds=age)
    numbers = {"orders-retry": QueueNumbers(messages=queued, publish_rate=rate)}
    snapshot = Snapshot("4.3.0", taken_at, topology.definitions, topology.definitions, numbers)
    latest = {topology.broker_id: Latest(snapshot, taken_at, error)}
    scope = counts.scope([topology.broker], NOW)
    return find_doubts(scope, [topology], latest)


def test_a_list_that_equals_its_queues_is_not_doubted(applied: Topology) -> None:
    assert doubts(applied, 3) == []


def test_probes_that_wait_are_no_messages_of_the_list(applied: Topology) -> None:
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    for name, delay in (("waits", hour), ("overdue", minute), ("new", hour)):
        sent_at = NOW if name == "new" else AGO
        Probe.objects.create(
            topology=applied, message_id=name, delay=delay, created_at=AGO, sent_at=sent_at
        )
    assert doubts(applied, 5) == []
    # The newest is possibly not counted yet.
    assert doubts(applied, 4) == []
    (found,) = doubts(applied, 7)
    assert found.difference == 2


def test_what_moves_explains_a_difference(applied: Topology) -> None:
    assert doubts(applied, 9, rate=1.0) == []
    Minute.objects.create(
        topology=applied, minute_at=NOW.replace(minute=29, second=0), entered=4, left=2
    )
    assert doubts(applied, 9) == []
    (found,) = doubts(applied, 10)
    assert found.difference == 7


def test_depths_that_are_old_unknown_or_doubtful_are_no_measure(applied: Topology) -> None:
    assert doubts(applied, 99, age=60.0) == []
    assert doubts(applied, None) == []
    assert doubts(applied, 99, error="The broker does not answer.") == []


def test_after_a_silence_it_says_since_when_and_by_how_many(applied: Topology) -> None:
    Recording.objects.update(read_at=AGO)
    (found,) = doubts(applied, 8)
    assert (found.since, found.difference) == (AGO, 5)
    assert found.record["difference"] == 5
    assert found.sentence.startswith("The list is incomplete since 2026-11-20 12:20:30 UTC. At le")


def test_a_gap_is_told_while_copies_of_it_can_still_wait(applied: Topology) -> None:
    for ago in (timedelta(minutes=5), timedelta(hours=3)):
        Gap.objects.create(
            topology=applied, from_at=NOW - 2 * ago, until_at=NOW - ago, why=f"Gap of {ago}."
        )
    (found,) = doubts(applied, 4)
    assert found.why == ("Gap of 0:05:00.",)
    assert doubts(applied, 3) == []


def test_a_gap_of_long_ago_is_remembered_while_messages_of_it_are_listed(
    applied: Topology,
) -> None:
    due_at = AGO + timedelta(hours=1)
    ScheduledMessage.objects.update(due_at=due_at - timedelta(days=8))
    Gap.objects.create(
        topology=applied,
        from_at=due_at - timedelta(days=9),
        until_at=due_at - timedelta(days=7),
        why="It was away.",
    )
    (found,) = doubts(applied, 0)
    assert found.why[0] == "It was away."
    assert found.figure == "At least 3 of the listed messages already left."
    ScheduledMessage.objects.update(due_at=AGO)
    (found,) = doubts(applied, 0)
    assert "It was away." not in found.why


def test_without_tap_or_firehose_only_our_own_is_listed(applied: Topology) -> None:
    holds = Topology.objects.create(
        broker=applied.broker,
        slug="mail",
        kind="hold_queues",
        name="mail",
        params={"exchange": "mail"},
        state=State.APPLIED,
        applied_at=NOW,
    )
    Recording.objects.create(topology=holds, read_at=NOW)
    scope = counts.scope([applied.broker], NOW)
    (found,) = find_doubts(scope, [holds], {})
    assert "This topology has no entry tap" in found.why[0]
    Firehose.objects.create(broker=applied.broker, switched_on_by="ada", read_at=NOW)
    assert find_doubts(scope, [holds], {}) == []
    Firehose.objects.update(read_at=AGO)
    (found,) = find_doubts(scope, [holds], {})
    assert found.since == AGO


def test_a_log_that_is_ahead_is_told_when_that_lasts(applied: Topology, event_log: Path) -> None:
    file = hour_folder(event_log, NOW) / "tap.orders.1.jsonl"
    file.parent.mkdir(parents=True)
    old, young = an_entry("m8", AGO), an_entry("m9", NOW - timedelta(seconds=1))
    file.write_bytes(encode(old) + b"\n" + encode(young) + b"\n")
    assert completeness.find_lag(event_log, NOW) == timedelta(minutes=10)
    (found,) = doubts(applied, 3)
    assert found.why == ("The list is 10m behind the event log.",)
    read = len(encode(old)) + 1
    position = LogPosition.objects.create(path=str(file.relative_to(event_log)), bytes_read=read)
    assert completeness.find_lag(event_log, NOW) == timedelta(0)
    LogPosition.objects.filter(pk=position.pk).update(bytes_read=file.stat().st_size)
    assert completeness.find_lag(event_log, NOW) == timedelta(0)
    (file.parent / "import.1.jsonl").write_bytes(encode(old) + b"\n")
    assert completeness.find_lag(event_log, NOW) == timedelta(0)
    assert completeness.find_lag(event_log / "elsewhere", NOW) == timedelta(0)
