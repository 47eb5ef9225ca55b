"""Taps that are streams: positions, what a crash leaves behind, streams of the same name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, Error, InterfaceError

from analytics.events import MessageEvent
from analytics.log import EventLog, LogError
from analytics.models import Gap, Minute, Recording, ScheduledMessage
from analytics.recorder import retired_taps, streams
from analytics.recorder.batches import RecordingFailed, StreamRecorder
from tests.analytics.builders import NOON, follow_log, ms
from tests.analytics.day_lines import read_day
from topology.broker.amqp.consumer import Delivery
from topology.message import Message, Properties
from topology.models import Topology

pytestmark = pytest.mark.both_databases


def an_entry(offset: int, *, exchange: str = "orders-retry", name: str = "") -> Delivery:
    properties = Properties(message_id=name or f"m{offset}")
    message = Message(exchange, "orders", properties, b"body")
    return Delivery(message, offset + 1, NOON + ms(offset), offset)


def entries(first: int, last: int) -> list[Delivery]:
    return [an_entry(offset) for offset in range(first, last + 1)]


def started(topology: Topology, event_log: Path, recorder: str = "tap.orders.1") -> StreamRecorder:
    return StreamRecorder(topology, EventLog(event_log, recorder), streams.resume(topology))


def logged(folder: Path) -> list[MessageEvent]:
    return list(read_day(folder, NOON.date()))


def offsets(folder: Path) -> list[int]:
    return [int(event.event_id.rpartition(":")[2]) for event in logged(folder)]


def test_a_copy_is_named_by_its_stream_and_offset(topology: Topology, event_log: Path) -> None:
    recorder = started(topology, event_log)
    recorder.put_away(entries(0, 1))
    stream = Recording.objects.get().stream
    assert [event.event_id for event in logged(event_log)] == [
        f"delayboard.tap.orders@{stream}:0",
        f"delayboard.tap.orders@{stream}:1",
    ]


def test_who_comes_back_begins_with_the_last_copy_and_leaves_it_out(
    topology: Topology, event_log: Path
) -> None:
    started(topology, event_log).put_away(entries(0, 4))
    again = started(topology, event_log)
    assert (again.position.start, again.is_sure) == (4, False)
    again.put_away(entries(4, 4))
    assert (again.position.start, again.is_sure) == (4, True)
    again.put_away(entries(5, 6))
    assert offsets(event_log) == list(range(7))
    assert not Gap.objects.exists()


def test_a_stream_that_nothing_was_read_of_is_read_from_its_first_copy(
    topology: Topology, event_log: Path
) -> None:
    recorder = started(topology, event_log)
    assert recorder.position.start == "first"
    assert recorder.is_sure


def test_another_copy_where_the_last_one_lay_is_another_stream(
    topology: Topology, event_log: Path
) -> None:
    started(topology, event_log).put_away(entries(0, 4))
    again = started(topology, event_log)
    with pytest.raises(streams.StreamReplaced, match="was recreated or truncated"):
        again.put_away([an_entry(4, name="another"), *entries(5, 6)])
    assert offsets(event_log) == list(range(5))
    assert Recording.objects.get().offset == 4
    first = Recording.objects.get().stream
    streams.forget(topology)
    anew = started(topology, event_log)
    assert (anew.position.start, anew.position.stream == first) == ("first", False)


@pytest.mark.parametrize("kind", [DatabaseError, InterfaceError])
def test_what_only_the_log_has_is_not_written_again(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Error]
) -> None:
    recorder = started(topology, event_log)
    recorder.put_away(entries(0, 1))

    def broken(*_: Any) -> None:
        raise kind("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(streams, "advance", broken)
        with pytest.raises(RecordingFailed, match=r"disk I/O error.*remain in the tap"):
            recorder.put_away(entries(2, 4))
    assert Recording.objects.get().offset == 1
    again = started(topology, event_log, "tap.orders.2")
    assert again.position.offset == 4
    again.put_away(entries(4, 6))
    assert offsets(event_log) == list(range(7))
    follow_log(event_log)
    assert ScheduledMessage.objects.count() == 7
    assert Minute.objects.get().entered == 7


def test_lines_of_another_stream_or_another_tap_are_not_taken_for_ours(
    topology: Topology, event_log: Path
) -> None:
    started(topology, event_log).put_away(entries(0, 4))
    streams.forget(topology)
    assert started(topology, event_log).position.offset == -1


def test_a_file_that_was_not_written_since_is_not_searched(
    topology: Topology, event_log: Path
) -> None:
    started(topology, event_log).put_away(entries(0, 4))
    Recording.objects.update(offset=1, read_at=NOON + timedelta(days=3650))
    assert started(topology, event_log).position.offset == 1


def test_a_torn_line_is_read_from_the_stream_again(topology: Topology, event_log: Path) -> None:
    started(topology, event_log).put_away(entries(0, 2))
    mark = streams.mark_of(an_entry(0))
    Recording.objects.update(offset=0, mark=mark)
    (path,) = event_log.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    again = started(topology, event_log, "tap.orders.2")
    assert again.position.offset == 1
    again.put_away(entries(1, 2))
    assert offsets(event_log) == [0, 1, 2]


@pytest.mark.parametrize(
    ("came", "reported"),
    [
        ([5, 6, 7], []),
        ([7, 8], [(5, 6)]),
        ([5, 9], [(6, 8)]),
        ([6, 7, 9], []),
    ],
)
def test_a_leap_of_more_than_one_offset_is_told(
    topology: Topology, came: list[int], reported: list[tuple[int, int]]
) -> None:
    position = streams.Position(topology, "s", offset=4)
    assert list(position.leaps([an_entry(offset) for offset in came])) == reported


def test_a_leap_is_a_gap_with_its_number_and_stays_one_when_the_batch_fails_twice(
    topology: Topology, event_log: Path
) -> None:
    started(topology, event_log).put_away(entries(0, 4))
    read_at = Recording.objects.get().read_at
    event_log.rename(event_log.with_name("kept"))
    event_log.write_text("in the way")
    for _ in range(2):
        position = streams.Position(
            topology, Recording.objects.get().stream, 4, streams.mark_of(an_entry(4))
        )
        with pytest.raises(LogError):
            StreamRecorder(topology, EventLog(event_log, "t"), position).put_away(entries(20, 21))
    event_log.unlink()
    event_log.with_name("kept").rename(event_log)
    started(topology, event_log).put_away(entries(20, 21))
    (gap,) = Gap.objects.all()
    assert (gap.at_most, gap.from_at) == (15, read_at)
    assert gap.why.endswith("offsets 5 to 19.")
    assert offsets(event_log) == [*range(5), 20, 21]


def test_a_stream_that_had_dropped_its_first_copies_before_any_reading_is_a_gap(
    topology: Topology, event_log: Path
) -> None:
    topology.applied_at = NOON - timedelta(hours=1)
    started(topology, event_log).put_away(entries(40, 41))
    (gap,) = Gap.objects.all()
    assert (gap.at_most, gap.from_at) == (40, topology.applied_at)


def test_a_recorder_that_another_has_overtaken_stops_and_changes_nothing(
    topology: Topology, event_log: Path
) -> None:
    slow, quick = started(topology, event_log), started(topology, event_log)
    quick.put_away(entries(0, 4))
    with pytest.raises(streams.NotAlone, match="Another recorder took over"):
        slow.put_away(entries(0, 2))
    assert offsets(event_log) == [0, 1, 2, 3, 4]
    assert Recording.objects.get().offset == 4


def test_a_batch_of_copies_that_the_pattern_does_not_know_is_passed_for_good(
    topology: Topology, event_log: Path
) -> None:
    strange = [an_entry(offset, exchange="elsewhere") for offset in range(3)]
    started(topology, event_log).put_away(strange)
    again = started(topology, event_log)
    assert again.position.offset == 2
    again.put_away([strange[-1], an_entry(3)])
    assert offsets(event_log) == [3]


def test_a_stream_to_be_sure_of_is_looked_at_after_a_silence_only(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[streams.Position] = []
    monkeypatch.setattr(streams, "check_reach", looked.append)
    recorder = started(topology, event_log)
    recorder.position = replace(recorder.position, offset=4, is_verified=False)
    recorder.doubt()
    assert not looked
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.0)
    recorder.doubt()
    assert looked == [recorder.position]


class Last:
    """The last chunk of a stream, up to an offset."""

    offset = -1

    def __init__(self, *_: object, **__: object) -> None:
        self.left = entries(self.offset, self.offset) if self.offset >= 0 else []

    def __enter__(self) -> Last:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batch(self, **_: object) -> list[Delivery]:
        come, self.left = self.left, []
        return come

    def ack_through(self, delivery: Delivery) -> None:
        pass

    def queue(self, name: str) -> dict[str, int]:
        return {"messages": self.offset + 1}


def test_a_retired_stream_that_falls_silent_is_closed_once_its_newest_copy_is_read(
    topology: Topology, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Topology] = []
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(streams, "Consumer", Last)
    monkeypatch.setattr(retired_taps, "Management", Last)
    monkeypatch.setattr(retired_taps, "_close", closed.append)
    recorder = started(topology, event_log)
    end = retired_taps.End()
    for newest, last, is_over in ((9, -1, False), (9, 4, False), (9, 9, True), (-1, -1, True)):
        monkeypatch.setattr(Last, "offset", newest)
        recorder.position = replace(recorder.position, offset=last, is_verified=True)
        assert end.close(topology, recorder, False) == is_over
    assert len(closed) == 2
