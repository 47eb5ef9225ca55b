from __future__ import annotations

import shutil
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from analytics.events import MessageEvent
from analytics.log import EventLog, LogError
from analytics.models import Gap, Minute, Recording, ScheduledMessage
from analytics.models.scheduled_message import measure_lateness
from analytics.recorder import gaps, held_up, shared_rows
from analytics.recorder.batches import Recorder, StreamRecorder
from analytics.recorder.copies import STORED_BODY_BYTES
from analytics.recorder.gaps import TOO_SLOW, Overflow
from tests.analytics.builders import DELAY, NOON, follow_log, ms
from tests.analytics.day_lines import read_day
from tests.topology.builders import delivered
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.message import Message, Properties
from topology.models import Topology

pytestmark = pytest.mark.both_databases

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
        changes.get("body", b"body"),
        redelivered=changes.get("redelivered", False),
    )
    return delivered(message, 1, NOON + at)


def a_failing_round() -> list[Delivery]:
    """Published, rejected, waited five seconds and 3 ms, back at work."""
    return [
        a_copy("orders"),
        a_copy("orders-retry", ms(100), [REJECTED]),
        a_copy("orders", ms(100) + DELAY + ms(3), [EXPIRED, REJECTED]),
    ]


@pytest.fixture
def recorder(topology: Topology, event_log: Path) -> Recorder:
    recorder = Recorder(topology, EventLog(event_log, "tap.orders.1"))
    recorder.is_caught_up = True
    return recorder


def logged(folder: Path) -> list[MessageEvent]:
    return list(read_day(folder, NOON.date()))


def test_a_round_through_the_retry_is_three_events_a_trip_and_minutes(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away(a_failing_round())
    follow_log(event_log)
    events = logged(event_log)
    assert [(e.kind, e.attempt, e.death_reason) for e in events] == [
        ("published", 0, ""),
        ("scheduled", 1, "rejected"),
        ("delivered", 1, "expired"),
    ]
    assert len({event.event_id for event in events}) == 3
    (row,) = ScheduledMessage.objects.all()
    assert (measure_lateness(row), row.attempt, row.caught_up) == (ms(3), 1, True)
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
    reported = recorder.topology.pattern.read

    def picky(params: Any, copy: Any) -> Any:
        if copy.headers.get("x-death"):
            raise ValueError("never seen such deaths")
        return reported(params, copy)

    monkeypatch.setattr(recorder.topology.pattern, "read", picky)
    recorder.put_away(a_failing_round())
    assert recorder.counters()["unknown"] == 2
    assert len(logged(event_log)) == 1


def test_deaths_beyond_all_numbers_stop_neither_the_tap_nor_the_index(
    recorder: Recorder, event_log: Path
) -> None:
    vast = {"queue": "orders-retry", "reason": "expired", "count": 2**63 - 1}
    recorder.put_away([a_copy("orders-retry", deaths=[vast] * 3), *a_failing_round()[1:]])
    assert recorder.counters()["recorded"] == 3
    assert follow_log(event_log)["unreadable"] == 0
    assert ScheduledMessage.objects.count() == 2


def test_a_name_that_grows_as_it_is_escaped_still_fits_its_column(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away([a_copy("orders-retry", message_id="\x00" * 255)])
    follow_log(event_log)
    assert ScheduledMessage.objects.get().message_id == "\\x00" * 63 + "\\x0"


def test_a_body_is_kept_from_the_moment_that_it_is_wanted(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away([a_copy("orders")])
    recorder.topology.keep_bodies = True
    recorder.put_away([a_copy("orders"), a_copy("orders", body=b"x" * (STORED_BODY_BYTES + 1))])
    assert [event.body_base64 for event in logged(event_log)] == ["", "Ym9keQ==", ""]


def test_other_parameters_take_another_recorder(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rows, "READ_SECONDS", -1.0)
    assert recorder.refresh()
    Topology.objects.update(params={**recorder.topology.params, "delay": "9m"})
    assert not recorder.refresh()


def test_a_log_that_cannot_be_written_is_a_sentence(recorder: Recorder, event_log: Path) -> None:
    event_log.write_text("in the way")
    with pytest.raises(LogError, match="cannot write the event log"):
        recorder.put_away(a_failing_round())


def test_a_batch_delivered_again_after_a_failure_is_indexed_once(
    recorder: Recorder, event_log: Path
) -> None:
    recorder.put_away(a_failing_round())
    follow_log(event_log)
    shutil.rmtree(event_log)
    again = [
        delivered(Message(**(vars(d.message) | {"redelivered": True})), d.tag, d.received_at)
        for d in a_failing_round()
    ]
    restarted = Recorder(recorder.topology, EventLog(event_log, "tap.orders.2"))
    restarted.put_away(again)
    follow_log(event_log)
    assert ScheduledMessage.objects.count() == 1
    assert Minute.objects.get().entered == 1
    assert [event.redelivered for event in logged(event_log)] == [True] * 3


def test_what_waited_in_the_tap_or_for_room_in_a_socket_is_no_measurement(
    recorder: Recorder, event_log: Path
) -> None:
    copies = a_failing_round()
    copies[1].has_waited = True
    recorder.put_away(copies)
    recorder.is_large = True
    recorder.put_away(a_failing_round()[:1])
    assert [event.caught_up for event in logged(event_log)] == [True, False, True, False]


def test_a_first_reading_has_no_gap(topology: Topology) -> None:
    assert gaps.before_reading(topology) is None
    gaps.note(topology, None)
    assert not Gap.objects.exists()
    assert Recording.objects.get().lost_since is None


def test_a_tap_that_was_absent_leaves_a_gap_from_its_last_reading(topology: Topology) -> None:
    gaps.note(topology, None)
    read_at = Recording.objects.get().read_at
    gaps.tap_is_absent(topology)
    gaps.tap_is_absent(topology)
    gaps.note(topology, gaps.before_reading(topology))
    (gap,) = Gap.objects.all()
    assert gap.from_at == read_at
    assert gap.until_at > read_at
    assert gap.why == "The tap queue “delayboard.tap.orders” did not exist, or its node was down."
    assert gaps.before_reading(topology) is None


def test_a_short_absence_of_the_recorder_is_no_gap(topology: Topology) -> None:
    gaps.note(topology, None)
    gaps.was_read(topology)
    assert gaps.before_reading(topology) is None


def a_queue(held: int | None, **stats: int) -> dict[str, Any]:
    """As the management API describes a classic tap with room for 1000 bytes."""
    known = {} if held is None else {"message_bytes": held, "messages": 10}
    return {**known, "arguments": {"x-max-length-bytes": 1000}, "message_stats": stats}


@pytest.mark.parametrize(
    ("queue", "loss"),
    [
        (a_queue(10), None),
        ({"message_bytes": 10, "arguments": {}}, None),
        (a_queue(950), ("The tap was full (950 of 1000 bytes)", None)),
        (a_queue(950, publish=100, ack=50), ("The tap was full (950 of 1000 bytes)", 40)),
        (a_queue(950, publish=100), ("The tap was full", None)),
        (a_queue(950, publish=20, ack=50), ("The tap was full", None)),
        (a_queue(None), ("did not report the fill level", None)),
    ],
)
def test_a_long_absence_is_a_gap_when_the_tap_was_at_its_bound(
    topology: Topology,
    monkeypatch: pytest.MonkeyPatch,
    queue: dict[str, Any],
    loss: tuple[str, int | None] | None,
) -> None:
    gaps.note(topology, None)
    Recording.objects.update(read_at=NOON - timedelta(days=1))
    monkeypatch.setattr(Management, "queue", lambda self, name: queue)
    found = gaps.before_reading(topology)
    if loss is None:
        assert found is None
        return
    assert found is not None
    assert loss[0] in found.why
    assert found.at_most == loss[1]


def test_a_broker_that_does_not_answer_leaves_a_doubt_that_is_told(
    topology: Topology,
) -> None:
    gaps.note(topology, None)
    Recording.objects.update(read_at=NOON - timedelta(days=1))
    topology.broker.management_urls = "http://127.0.0.1:1"
    loss = gaps.before_reading(topology)
    assert loss is not None
    assert "the fill level is unknown" in loss.why


def fill(held: int, dropped: int | None) -> gaps.Fill:
    return gaps.Fill(held, 1000, dropped)


def test_a_tap_that_is_full_while_it_is_read_is_a_gap_with_what_it_dropped(
    topology: Topology,
) -> None:
    overflow = Overflow(topology)
    overflow.take(fill(10, 5), is_behind=True)
    overflow.take(fill(950, 7), is_behind=True)
    overflow.take(fill(800, 27), is_behind=True)
    assert not Gap.objects.exists()
    overflow.take(fill(10, 30), is_behind=False)
    overflow.take(fill(10, 30), is_behind=False)
    (gap,) = Gap.objects.all()
    assert (gap.why, gap.at_most) == (TOO_SLOW, 25)
    assert gap.from_at < gap.until_at


def test_what_a_full_tap_dropped_is_unknown_where_the_broker_counts_anew(
    topology: Topology,
) -> None:
    overflow = Overflow(topology)
    overflow.take(fill(950, None), is_behind=True)
    overflow.take(fill(10, 30), is_behind=False)
    assert Gap.objects.get().at_most is None


def test_a_pulse_shows_a_stop_to_whoever_looks_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(held_up, "monotonic", lambda: now)
    pulse = held_up.Pulse()
    now += held_up.BEAT_SECONDS + 0.2
    pulse.beat()
    assert not pulse.was_held_up(100.0)
    began = now
    now += 1.0
    assert pulse.was_held_up(began), "before its thread goes on"
    pulse.beat()
    assert pulse.was_held_up(began), "and after"
    now += 0.1
    pulse.beat()
    assert not pulse.was_held_up(now)


def test_a_look_that_began_before_a_stop_says_nothing_of_the_time_since(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Future[gaps.Fill] = Future()
    monkeypatch.setattr(gaps, "run_in_background", lambda *_: answer)
    overflow = Overflow(topology)
    overflow.step(is_behind=False)
    asked_by = datetime.now(UTC)
    answer.set_result(fill(10, 5))
    overflow.step(is_behind=True)
    overflow.take(fill(950, 7), is_behind=True)
    overflow.take(fill(10, 30), is_behind=False)
    assert Gap.objects.get().from_at <= asked_by


def test_a_retired_stream_is_not_watched_for_an_overflow(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def look(_: object, what: str) -> Future[gaps.Fill]:
        looks.append(what)
        return Future()

    monkeypatch.setattr(gaps, "run_in_background", look)
    log = EventLog(event_log, "tap.orders.1")
    StreamRecorder(topology, log).watch(is_behind=True)
    assert not looks
    Recorder(topology, log).watch(is_behind=True)
    assert looks == ["check a tap"]
