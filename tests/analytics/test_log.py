from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from analytics.events import encode
from analytics.log import (
    EventLog,
    LogError,
    take_lock,
)
from tests.analytics.builders import NOON, an_event
from tests.analytics.day_lines import days, read_day

DAY = NOON.date()
HOUR = timedelta(hours=1)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))


def test_events_lie_by_utc_date_and_hour(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "a")
    events = [an_event(recorded_at=NOON + n * 7 * HOUR) for n in range(3)]
    log.append(reversed(events))
    assert files(tmp_path) == [
        "date=2026-11-20/hour=12/a-1.jsonl",
        "date=2026-11-20/hour=19/a-1.jsonl",
        "date=2026-11-21/hour=02/a-1.jsonl",
    ]
    assert list(read_day(tmp_path, DAY)) == events[:2]
    assert days(tmp_path) == [DAY, DAY + timedelta(days=1)]


def test_the_hour_is_utc_whatever_zone_the_moment_has(tmp_path: Path) -> None:
    from zoneinfo import ZoneInfo

    at = datetime(2026, 11, 21, 1, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    EventLog(tmp_path, "a").append([an_event(recorded_at=at)])
    assert files(tmp_path) == ["date=2026-11-21/hour=00/a-1.jsonl"]


def test_a_file_that_is_big_enough_is_followed_by_the_next(tmp_path: Path) -> None:
    events = [an_event(event_id=f"e{n}") for n in range(7)]
    log = EventLog(tmp_path, "a", roll_bytes=len(encode(events[0])) * 2)
    for event in events:
        log.append([event])
    assert len(files(tmp_path)) == 4
    assert list(read_day(tmp_path, DAY)) == events


def test_recorders_write_side_by_side_and_each_goes_on_in_its_own_file(tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("a", "a-1", "b/.."):
            EventLog(tmp_path, name).append([an_event()])
    hour = "date=2026-11-20/hour=12"
    assert files(tmp_path) == [f"{hour}/a-1-1.jsonl", f"{hour}/a-1.jsonl", f"{hour}/b_..-1.jsonl"]
    assert len(list(read_day(tmp_path, DAY))) == 6


def test_a_crash_at_any_byte_of_the_last_line_costs_at_most_that_line(tmp_path: Path) -> None:
    whole, torn, after = an_event(), an_event(), an_event()
    first, second = encode(whole) + b"\n", encode(torn) + b"\n"
    for cut in range(len(second) + 1):
        folder = tmp_path / str(cut)
        path = folder / "date=2026-11-20/hour=12/a-1.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(first + second[:cut])
        EventLog(folder, "a").append([after])
        lines = read_day(folder, DAY)
        found = list(lines)
        is_complete = cut >= len(second) - 1
        assert found == ([whole, torn, after] if is_complete else [whole, after])
        assert lines.malformed == (0 if is_complete or cut == 0 else 1)
        assert lines.lines == len(found) + lines.malformed


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_batch_that_does_not_fit_leaves_whole_lines_only_and_says_why(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "a")
    log.append([an_event(event_id="first")])
    size = len(encode(an_event()))
    with no_file_longer_than(size * 3), pytest.raises(LogError, match="file too large"):
        log.append(an_event(event_id=f"b{number}") for number in range(5))
    log.append([an_event(event_id="later")])
    lines = read_day(tmp_path, DAY)
    names = [event.event_id for event in lines]
    assert lines.malformed == 0
    assert (names[0], names[-1]) == ("first", "later")
    assert names[1:-1] == ["b0", "b1"]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file is in the way")
    with pytest.raises(LogError, match=r"Delayboard cannot write the event log in .*log: "):
        EventLog(tmp_path / "log", "a").append([an_event()])


def test_a_day_without_lines_has_none(tmp_path: Path) -> None:
    (tmp_path / "date=2026-11-20/hour=12").mkdir(parents=True)
    (tmp_path / "date=2026-11-20/hour=12/a-1.jsonl").touch()
    assert days(tmp_path) == []
    assert list(read_day(tmp_path, date(2026, 11, 20))) == []


def test_counting_begins_anew_with_each_reading(tmp_path: Path) -> None:
    path = tmp_path / "date=2026-11-20/hour=12/a-1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(an_event(recorded_at=datetime(2026, 11, 20, tzinfo=UTC))) + b"\n{\n")
    lines = read_day(tmp_path, DAY)
    for _ in range(2):
        assert len(list(lines)) == 1
        assert (lines.lines, lines.malformed) == (2, 1)


def test_a_lock_is_held_by_one_at_a_time_and_each_name_has_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with (
        take_lock(folder, "tap.a") as first,
        take_lock(folder, "tap.a") as second,
        take_lock(folder, "b") as b,
    ):
        assert (first, second, b) == (True, False, True)
    with take_lock(folder, "tap.a") as again:
        assert again
    assert days(folder) == []


def test_a_log_that_cannot_be_locked_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    with (
        pytest.raises(LogError, match="cannot write the event log"),
        take_lock(tmp_path / "log", "a"),
    ):
        pass
