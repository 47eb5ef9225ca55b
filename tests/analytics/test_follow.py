from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.db import DatabaseError, Error, InterfaceError

from analytics import minutes
from analytics.events import MessageEvent
from analytics.log import hour_folder
from analytics.models import (
    Firehose,
    LogPosition,
    Minute,
    ScheduledBody,
    ScheduledMessage,
)
from analytics.recorder import follow, pressure
from analytics.recorder.follow import Follower
from analytics.recorder.record import RecordingFailed
from analytics.scheduled.summaries import counts
from tests.analytics.builders import (
    NOON,
    a_trip,
    an_entry,
    an_event,
    an_exit,
    follow_log,
    write_log,
)
from topology.models import Topology

pytestmark = pytest.mark.both_databases

TAP = "tap.orders.1"


def entries(number: int) -> list[MessageEvent]:
    return [an_entry(f"m{n}") for n in range(number)]


def test_each_line_is_indexed_once_however_often_the_log_is_followed(
    topology: Topology, event_log: Path
) -> None:
    write_log(event_log, entries(3), TAP)
    assert follow_log(event_log)["indexed"] == 3
    assert follow_log(event_log)["indexed"] == 0
    write_log(event_log, [an_exit("m0"), an_entry("m3")], TAP)
    assert follow_log(event_log)["indexed"] == 2
    waiting = ScheduledMessage.objects.filter(left_at=None).values_list("key", flat=True)
    assert sorted(waiting) == ["m1", "m2", "m3"]
    assert Minute.objects.get().entered == 4


@pytest.mark.parametrize("kind", [DatabaseError, InterfaceError])
def test_a_chunk_that_fails_is_taken_again_as_a_whole(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Error]
) -> None:
    write_log(event_log, entries(3), TAP)

    def broken(*_: Any) -> None:
        raise kind("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(minutes, "count", broken)
        with pytest.raises(RecordingFailed, match=r"disk I/O error.*tries again"):
            follow_log(event_log)
    assert not ScheduledMessage.objects.exists()
    assert not LogPosition.objects.exists()
    follow_log(event_log)
    assert ScheduledMessage.objects.count() == 3


def test_what_a_crash_made_come_again_is_known_whatever_the_files_are_called(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CHUNK_BYTES", 1)
    later = NOON + timedelta(seconds=5)
    again = [an_entry(f"m{n}", later, redelivered=True) for n in range(3)]
    write_log(event_log, [*again, an_entry("m3", later)], "tap.orders.0-after-it")
    write_log(event_log, entries(3), "tap.orders.1-crashed")
    follow_log(event_log)
    assert ScheduledMessage.objects.count() == 4
    assert Minute.objects.get().entered == 4


def test_a_torn_end_does_not_hold_up_the_recorder_that_came_after(
    topology: Topology, event_log: Path
) -> None:
    now = datetime.now(UTC)
    write_log(event_log, [an_entry("m1", now), an_entry("torn", now)], "tap.orders.1-crashed")
    (path,) = event_log.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    write_log(event_log, [an_entry("m2", now)], "tap.orders.2")
    follow_log(event_log)
    write_log(event_log, [an_entry("m3", now)], "tap.orders.2")
    follow_log(event_log)
    assert ScheduledMessage.objects.count() == 3


def test_a_line_that_is_still_being_written_is_waited_for(
    topology: Topology, event_log: Path
) -> None:
    now = datetime.now(UTC)
    write_log(event_log, [an_entry("m1", now), an_entry("m2", now)], TAP)
    (path,) = event_log.rglob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert follow_log(event_log)["indexed"] == 1
    path.write_bytes(whole)
    assert follow_log(event_log)["indexed"] == 1
    assert ScheduledMessage.objects.count() == 2


def test_a_line_that_was_torn_an_hour_ago_is_counted_and_left(
    topology: Topology, event_log: Path
) -> None:
    write_log(event_log, entries(2), TAP)
    (path,) = event_log.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    counters = follow_log(event_log)
    assert (counters["indexed"], counters["unreadable"]) == (1, 1)
    assert follow_log(event_log)["unreadable"] == 0


def test_a_line_that_is_none_does_not_stop_the_others(topology: Topology, event_log: Path) -> None:
    write_log(event_log, entries(1), TAP)
    (path,) = event_log.rglob("*.jsonl")
    path.write_bytes(b"no event\n" + path.read_bytes())
    counters = follow_log(event_log)
    assert (counters["indexed"], counters["unreadable"]) == (1, 1)


def test_an_event_that_no_row_can_hold_is_left_out_alone_and_named(
    topology: Topology, event_log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [an_entry("m1"), an_entry("vast", attempt=2**63), an_entry("m2")]
    write_log(event_log, events, TAP)
    counters = follow_log(event_log)
    assert (counters["indexed"], counters["unreadable"]) == (2, 1)
    waiting = ScheduledMessage.objects.values_list("key", flat=True)
    assert sorted(waiting) == ["m1", "m2"]
    assert Minute.objects.get().entered == 2
    assert events[1].event_id in caplog.text
    assert follow_log(event_log)["unreadable"] == 0


def test_imports_and_unknown_topologies_are_not_indexed(
    topology: Topology, event_log: Path
) -> None:
    write_log(event_log, entries(1), "import.1")
    write_log(event_log, [an_entry("other", topology="unknown")], TAP)
    write_log(event_log, [an_entry("elsewhere", broker="another")], TAP)
    follow_log(event_log)
    assert not ScheduledMessage.objects.exists()


def test_a_long_backlog_of_an_hour_ago_is_taken_chunk_by_chunk(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CHUNK_BYTES", 2000)
    write_log(event_log, entries(10), TAP)
    follower = Follower(event_log)
    taken = [follower.step() for _ in range(6)]
    assert sum(taken) == 10
    assert max(taken) < 5
    assert follower.counters()["behind_bytes"] == 0


def test_what_is_written_while_it_follows_is_found(topology: Topology, event_log: Path) -> None:
    follower = Follower(event_log)
    assert follower.step() == 0
    write_log(event_log, [an_entry("m1", datetime.now(UTC))], TAP)
    assert follower.step() == 1
    assert follower.step() == 0


def test_counts_of_what_is_due_follow_the_rows(topology: Topology, event_log: Path) -> None:
    at = NOON + timedelta(seconds=10)
    write_log(event_log, [an_entry(f"m{n}", at) for n in range(3)], TAP)
    follow_log(event_log)
    assert counts.scope([topology.broker], NOON).by_topology[topology.pk] == 3
    write_log(event_log, [an_exit("m0", at + timedelta(seconds=5))], TAP)
    follow_log(event_log)
    assert counts.scope([topology.broker], NOON).by_topology[topology.pk] == 2


def test_an_exit_that_is_read_before_its_entry_leaves_no_count(
    topology: Topology, event_log: Path
) -> None:
    entry, exit_ = a_trip()
    write_log(event_log, [exit_], TAP)
    follow_log(event_log)
    write_log(event_log, [entry], TAP)
    follow_log(event_log)
    assert counts.scope([topology.broker], NOON).by_topology == {}
    assert ScheduledMessage.objects.get().left_at == exit_.recorded_at


def test_an_entry_is_told_with_its_headers_publisher_and_body(
    topology: Topology, event_log: Path
) -> None:
    entry = an_entry(
        headers_json='{"tenant":42}',
        published_by="shop",
        published_at=NOON,
        published_at_source="delayboard",
        exchange="orders-retry",
        routing_key="orders",
        correlation_id="c",
        content_type="text/plain",
        body_base64="aGVsbG8=",
        properties_base64="IAAFc2hvcA==",
    )
    write_log(event_log, [entry], TAP)
    follow_log(event_log)
    row = ScheduledMessage.objects.get()
    assert (row.headers_json, row.published_by, row.published_at) == ('{"tenant":42}', "shop", NOON)
    assert (row.exchange, row.routing_key, row.correlation_id) == ("orders-retry", "orders", "c")
    kept = ScheduledBody.objects.get(message=row)
    assert (bytes(kept.body), bytes(kept.properties)) == (b"hello", b" \0\5shop")


def stated(topology: str, **changes: Any) -> Iterable[MessageEvent]:
    values = {"source": "delayboard", "kind": "published", "topology": topology} | changes
    return [an_event(**values)]


@pytest.fixture
def hold_queues(topology: Topology) -> Topology:
    """Its entries pass the default exchange, where no tap can be."""
    params = {"exchange": "events", "keys": "", "delays": "5s"}
    return Topology.objects.create(
        broker=topology.broker, slug="held", kind="hold_queues", name="held", params=params
    )


def test_what_delayboard_published_waits_where_no_tap_sees_it(
    hold_queues: Topology, event_log: Path
) -> None:
    write_log(event_log, stated("held"), "facts.1")
    follow_log(event_log)
    row = ScheduledMessage.objects.get()
    assert (row.topology, row.source) == (hold_queues, "delayboard")
    assert row.due_at == NOON + timedelta(seconds=5)


def test_what_delayboard_published_is_not_listed_twice(
    hold_queues: Topology, event_log: Path
) -> None:
    write_log(event_log, stated("orders", tracking_id="t1"), "facts.1")
    follow_log(event_log)
    assert not ScheduledMessage.objects.exists()
    Firehose.objects.create(broker=hold_queues.broker, switched_on_by="ada")
    write_log(event_log, stated("held"), "facts.1")
    follow_log(event_log)
    assert not ScheduledMessage.objects.exists()


def test_the_index_gives_way_to_a_recorder_that_is_behind_and_not_for_ever() -> None:
    stop = Event()
    pressure.set_behind("orders", is_behind=True)
    assert pressure.is_on()
    pressure.wait_for_recorders(stop)
    pressure.set_behind("orders", is_behind=False)
    assert not pressure.is_on()


def test_the_hours_are_read_in_their_order(topology: Topology, event_log: Path) -> None:
    late = NOON + timedelta(hours=30)
    write_log(event_log, [an_exit("m1", late)], TAP)
    write_log(event_log, [an_entry("m1", NOON)], TAP)
    follow_log(event_log)
    positions = LogPosition.objects.order_by("pk").values_list("path", flat=True)
    wanted = [hour_folder(event_log, at) / f"{TAP}-1.jsonl" for at in (NOON, late)]
    assert list(positions) == [str(path.relative_to(event_log)) for path in wanted]
