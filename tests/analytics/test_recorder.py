from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError

from analytics import minutes
from analytics.events import MessageEvent
from analytics.log import EventLog, LogError, read_day
from analytics.models import Gap, Minute, Recording, ScheduledMessage
from analytics.recorder import gaps
from analytics.recorder.backlog import Backlog
from analytics.recorder.batches import Recorder, RecordingFailed
from tests.analytics.builders import DELAY, NOON, ms
from topology.broker.consumer import Delivery
from topology.broker.management import Management
from topology.message import Message, Properties
from topology.models import Topology

REJECTED = {"queue": "orders", "reason": "rejected", "count": 1}
EXPIRED = {"queue": "orders-retry", "reason": "expired", "count": 1}


def a_copy(
    exchange: str,
    at: timedelta = timedelta(0),
    deaths: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Delivery:
    headers = {"x-death": deaths} if deaths else {}
    properties = Properties(headers=headers, message_id=changes.get("message_id", "m1"))
    message = Message(
        exchange,
        changes.get("routing_key", "orders"),
        properties,
        b"body",
        redelivered=changes.get("redelivered", False),
    )
    return Delivery(message, 1, NOON + at)


def a_failing_round() -> list[Delivery]:
    """Published, rejected, waited five seconds and 3 ms, back at work."""
    return [
        a_copy("orders"),
        a_copy("orders-retry", ms(100), [REJECTED]),
        a_copy("orders", ms(100) + DELAY + ms(3), [EXPIRED, REJECTED]),
    ]


@pytest.fixture
def recorder(topology: Topology, event_log: Path) -> Recorder:
    recorder = Recorder(topology, EventLog(event_log, "tap"))
    recorder.backlog.take(is_full=False)
    recorder.backlog.take(is_full=False)
    return recorder


def logged(folder: Path) -> list[MessageEvent]:
    return list(read_day(folder, NOON.date()))


def test_a_round_through_the_retry_is_three_events_a_trip_and_minutes(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away(a_failing_round())
    events = logged(event_log)
    assert [(e.kind, e.attempt, e.death_reason) for e in events] == [
        ("published", 0, ""),
        ("scheduled", 1, "rejected"),
        ("delivered", 1, "expired"),
    ]
    assert len({event.event_id for event in events}) == 3
    (row,) = ScheduledMessage.objects.all()
    assert (row.lateness, row.attempt, row.caught_up) == (ms(3), 1, True)
    (minute,) = Minute.objects.all()
    assert (minute.entered, minute.left, minute.died) == (1, 1, 1)
    assert recorder.counters() == {
        "tap": "classic",
        "recorded": 3,
        "unknown": 0,
        "caught_up": True,
        "last_at": "2026-11-20T12:00:05.103000+00:00",
    }


def test_copies_that_the_pattern_does_not_know_are_counted_and_kept_out(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away([a_copy("elsewhere"), *a_failing_round()])
    assert recorder.counters()["unknown"] == 1
    assert len(logged(event_log)) == 3


def test_a_copy_that_cannot_be_read_does_not_stop_the_others(
    recorder: Recorder, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = recorder.topology.pattern.read

    def picky(params: Any, copy: Any) -> Any:
        if copy.headers.get("x-death"):
            raise ValueError("never seen such deaths")
        return told(params, copy)

    monkeypatch.setattr(recorder.topology.pattern, "read", picky)
    recorder.put_away(a_failing_round())
    assert recorder.counters()["unknown"] == 2
    assert len(logged(event_log)) == 1


def test_the_first_batch_is_a_backlog_of_unknown_age(topology: Topology, event_log: Path) -> None:
    Recorder(topology, EventLog(event_log, "tap")).put_away([a_copy("orders")])
    assert [event.caught_up for event in logged(event_log)] == [False]


def test_a_log_that_cannot_be_written_leaves_the_index_untouched(
    recorder: Recorder, event_log: Path
) -> None:
    event_log.write_text("in the way")
    with pytest.raises(LogError):
        recorder.put_away(a_failing_round())
    assert not ScheduledMessage.objects.exists()
    assert recorder.counters()["recorded"] == 0


def test_a_database_that_fails_is_a_sentence_and_nothing_is_half_indexed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise DatabaseError("disk I/O error")

    monkeypatch.setattr(minutes, "count", broken)
    with pytest.raises(RecordingFailed, match=r"disk I/O error.*stay in the tap"):
        recorder.put_away(a_failing_round())
    assert not ScheduledMessage.objects.exists()


def test_a_batch_delivered_again_after_a_failure_is_indexed_once(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away(a_failing_round())
    shutil.rmtree(event_log)
    again = [
        Delivery(Message(**(vars(d.message) | {"redelivered": True})), d.tag, d.received_at)
        for d in a_failing_round()
    ]
    restarted = Recorder(recorder.topology, EventLog(event_log, "tap"))
    restarted.put_away(again)
    assert ScheduledMessage.objects.count() == 1
    assert Minute.objects.get().entered == 1
    assert [event.redelivered for event in logged(event_log)] == [True] * 3


def test_only_a_short_batch_after_a_short_one_holds_copies_that_did_not_wait() -> None:
    backlog = Backlog()
    told = []
    for is_full in (False, False, True, False, False):
        backlog.take(is_full=is_full)
        told.append(backlog.is_caught_up)
    assert told == [False, True, False, False, True]


def test_a_first_reading_has_no_gap(topology: Topology) -> None:
    assert gaps.before_reading(topology) == ""
    gaps.note(topology, "")
    assert not Gap.objects.exists()
    assert Recording.objects.get().lost_since is None


def test_a_tap_that_was_absent_leaves_a_gap_from_its_last_reading(topology: Topology) -> None:
    gaps.note(topology, "")
    read_at = Recording.objects.get().read_at
    gaps.tap_is_absent(topology)
    gaps.tap_is_absent(topology)
    why = gaps.before_reading(topology)
    gaps.note(topology, why)
    (gap,) = Gap.objects.all()
    assert gap.from_at == read_at
    assert gap.until_at > read_at
    assert gap.why == "The tap queue “delayboard.tap.orders” did not exist."
    assert gaps.before_reading(topology) == ""


def test_a_short_absence_of_the_recorder_is_no_gap(topology: Topology) -> None:
    gaps.note(topology, "")
    gaps.was_read(topology)
    assert gaps.before_reading(topology) == ""


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ({"message_bytes": 10, "arguments": {"x-max-length-bytes": 1000}}, ""),
        ({"message_bytes": 10, "arguments": {}}, ""),
        (
            {"message_bytes": 950, "arguments": {"x-max-length-bytes": 1000}},
            "until it was full (950 of 1000 bytes)",
        ),
        ({"arguments": {"x-max-length-bytes": 1000}}, "does not say how full"),
    ],
)
def test_a_long_absence_is_a_gap_when_the_tap_was_at_its_bound(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, queue: dict[str, Any], why: str
) -> None:
    gaps.note(topology, "")
    Recording.objects.update(read_at=NOON - timedelta(days=1))
    monkeypatch.setattr(Management, "queue", lambda self, name: queue)
    assert why in gaps.before_reading(topology)
    assert bool(gaps.before_reading(topology)) == bool(why)


def test_a_broker_that_does_not_answer_leaves_a_doubt_that_is_told(
    topology: Topology,
) -> None:
    gaps.note(topology, "")
    Recording.objects.update(read_at=NOON - timedelta(days=1))
    topology.broker.management_url = "http://127.0.0.1:1"
    assert "cannot be told" in gaps.before_reading(topology)
