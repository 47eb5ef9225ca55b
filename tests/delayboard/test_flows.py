"""What the first page says of the last minutes, and that unknown is never told as zero."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from analytics.models import Firehose, Minute, Recording
from delayboard.models import BackgroundTask
from delayboard.now.lateness import Lateness
from delayboard.now.throughput import FlowLine, find_lag, flow_lines
from delayboard.now.topology_lines import TopologyLine, _read_spans, draw_days
from topology.models import Broker, State, Topology
from topology.patterns.retry_pair.pattern import retry_pair

NOW = datetime.fromisoformat("2026-11-20T12:30:40+00:00")
MINUTE = timedelta(minutes=1)


def a_minute(topology: Topology, ago: int, **counts: int) -> None:
    at = NOW.replace(second=0) - ago * MINUTE
    Minute.objects.create(topology=topology, minute_at=at, **counts)


def read(topology: Topology, ago: timedelta = timedelta(0)) -> None:
    Recording.objects.create(topology=topology, read_at=NOW - ago)


def the_line(pair: Topology, *background_tasks: BackgroundTask) -> FlowLine:
    (line,) = flow_lines([pair.broker], background_tasks, NOW)
    return line


def an_index(beat_at: datetime | None = None, **details: Any) -> BackgroundTask:
    return BackgroundTask(key="index", name="Index", beat_at=beat_at, details=details)


def test_the_last_five_minutes_are_added_up_and_the_hour_is_drawn(pair: Topology) -> None:
    read(pair)
    a_minute(pair, 0, entered=2, left=1)
    a_minute(pair, 4, entered=10, left=9, late=3, died=4)
    a_minute(pair, 5, entered=100, left=100)
    a_minute(pair, 60, entered=1000)
    line = the_line(pair)
    assert line.numbers == {"entered": 12, "left": 10, "late": 3, "died": 4}
    assert (
        line.description
        == "Last hour: 112 in, 110 out, 3 late, 4 dead-lettered; at most 100 a minute."
    )
    assert (line.status, line.mark) == ("OK", "done")
    assert (line.rates, line.retried, line.late) == ("<0.1 / <0.1", "3.6 %", "2.7 %")


def the_day(pair: Topology, waiting: int | None) -> TopologyLine:
    _read_spans.cache_clear()
    (line,) = draw_days([TopologyLine(the_line(pair), Lateness(), waiting, None)], NOW)
    return line


def test_the_depth_of_a_day_is_reckoned_back_from_what_waits_now(pair: Topology) -> None:
    read(pair)
    a_minute(pair, 0, entered=2, left=1)
    a_minute(pair, 5, left=4)
    a_minute(pair, 35, entered=6)
    a_minute(pair, 120, entered=10)
    a_minute(pair, 60 * 24, entered=1000)
    line = the_day(pair, 20)
    # Of the ten minutes that begin at 10:30: before them seven waited.
    assert line.day == (7, *[17] * 8, *[23] * 3, 19, 20)
    assert line.day_words == "Waiting messages in the last 2 h: 7 to 23."
    first, *_, last = line.day_line.split()
    assert first.startswith("109")
    assert last.startswith("120,")
    assert the_day(pair, 5).day == ()
    assert the_day(pair, None).day_words == "No data for the last 24 h."


@pytest.mark.parametrize(("tapped", "side", "day"), [("entry", "entered", 4), ("exit", "left", 3)])
def test_of_a_topology_with_one_side_that_side_is_drawn(
    pair: Topology, monkeypatch: pytest.MonkeyPatch, tapped: str, side: str, day: int
) -> None:
    taps = [tap for tap in retry_pair.taps(pair.parsed) if tap.phase == tapped]
    monkeypatch.setattr(retry_pair, "taps", lambda params: taps)
    read(pair)
    a_minute(pair, 1, entered=4, left=3)
    line = the_day(pair, 9)
    assert (line.day, line.day_of) == ((day, 0), side)


def test_a_quiet_topology_that_is_read_has_zeros(pair: Topology) -> None:
    read(pair)
    line = the_line(pair)
    assert set(line.numbers.values()) == {0}
    assert line.rates == "0 / 0"
    assert (line.retried, line.late) == ("–", "–")


def test_a_silent_recorder_makes_the_numbers_unknown_and_says_since_when(pair: Topology) -> None:
    read(pair, 10 * MINUTE)
    a_minute(pair, 12, entered=7)
    line = the_line(pair)
    assert set(line.numbers.values()) == {None}
    assert line.rates == "– / –"
    assert line.status == "Not recorded since 2026-11-20 12:20 UTC"
    assert line.mark == "late"
    assert line.description.endswith(
        "7 in, 0 out, 0 late, 0 dead-lettered; at most 7 a minute. No data for the last 10 minutes."
    )


def test_one_that_was_never_read_has_no_drawing(pair: Topology) -> None:
    line = the_line(pair)
    assert line.status == "Not recorded since the topology was applied"
    assert line.description == "No data for the last hour."


@pytest.mark.parametrize("seconds", [4, 90.5])
def test_numbers_of_an_index_that_is_behind_are_unknown(pair: Topology, seconds: float) -> None:
    read(pair)
    now_alive = datetime.now(NOW.tzinfo)
    line = the_line(pair, an_index(now_alive, behind_seconds=seconds))
    assert set(line.numbers.values()) == {None}
    assert line.status.startswith("Not counted since 2026-11-20 12:")
    assert the_line(pair, an_index(now_alive, behind_seconds=2)).status == "OK"


def test_numbers_of_an_index_without_a_sign_of_life_are_unknown(pair: Topology) -> None:
    read(pair)
    assert the_line(pair, an_index(NOW - MINUTE)).status == "Not counted since 2026-11-20 12:29 UTC"


SIDES: list[tuple[set[str], str, dict[str, int | None]]] = [
    ({"entry"}, "Deliveries", {"entered": 4, "left": None, "late": None, "died": 1}),
    ({"exit"}, "Entries", {"entered": None, "left": 3, "late": 2, "died": None}),
    (set(), "Entries and deliveries", {"entered": None, "left": None, "late": None, "died": None}),
]


@pytest.mark.parametrize(("tapped", "what", "numbers"), SIDES)
def test_a_side_that_nobody_sees_has_no_numbers_unless_the_firehose_is_on(
    pair: Topology,
    monkeypatch: pytest.MonkeyPatch,
    tapped: set[str],
    what: str,
    numbers: dict[str, int | None],
) -> None:
    taps = [tap for tap in retry_pair.taps(pair.parsed) if tap.phase in tapped]
    monkeypatch.setattr(retry_pair, "taps", lambda params: taps)
    read(pair)
    a_minute(pair, 1, entered=4, left=3, late=2, died=1)
    line = the_line(pair)
    assert (line.numbers, line.mark) == (numbers, "")
    assert line.status == f"{what} not observed"
    assert (" in" in line.description) == ("entry" in tapped)
    firehose = Firehose.objects.create(broker=pair.broker, switched_on_by="ann", read_at=NOW)
    assert None not in the_line(pair).numbers.values()
    firehose.read_at = NOW - MINUTE
    firehose.save()
    assert the_line(pair).status == "Not recorded since 2026-11-20 12:29 UTC"


@pytest.mark.parametrize("reported", [None, "soon", True, -5])
def test_an_odd_word_on_being_behind_says_nothing(reported: object) -> None:
    assert find_lag(an_index(behind_seconds=reported)) == timedelta(0)


def test_only_applied_topologies_of_these_brokers(pair: Topology, broker: Broker) -> None:
    quiet = Topology.objects.create(
        broker=broker, slug="a-quiet", kind=pair.kind, name="a quiet", params=pair.params
    )
    assert [line.topology for line in flow_lines([broker], (), NOW)] == [pair]
    quiet.state = State.APPLIED
    quiet.save()
    read(pair)
    read(quiet)
    assert {line.topology for line in flow_lines([broker], (), NOW)} == {pair, quiet}
    assert flow_lines([], (), NOW) == []
