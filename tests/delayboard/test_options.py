"""Options of a replay, read from texts as a form or a command has them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from delayboard.dead_letters.replay.options import (
    DEFAULTS,
    OptionError,
    Options,
    Stage,
    format_options,
    read_batch_options,
    read_options,
    suggest_stages,
)
from delayboard.models import Order, ReplayBatch, TargetMode
from topology.definitions import PROBE_PREFIX, TAP_PREFIX


def test_nothing_said_is_as_by_default() -> None:
    assert (
        read_options({})
        == read_options({"mode": "", "rate": " ", "unknown": "x"})
        == DEFAULTS
        == Options()
    )


def test_everything_is_read_as_people_write_it() -> None:
    said = {
        "mode": "typed",
        "exchange": "orders ",
        "key": " a.b",
        "order": "newest",
        "rate": "0.5",
        "canary": "1,000",
        "canary_seconds": "1m 30s",
        "canary_goes_on": "on",
        "undo_seconds": "500ms",
        "most_replays": "1",
        "stop_after": "0",
        "limit": "100",
    }
    assert read_options(said) == Options(
        mode=TargetMode.TYPED,
        exchange="orders ",
        key=" a.b",
        order=Order.NEWEST,
        rate=0.5,
        canary=1000,
        canary_seconds=90,
        canary_goes_on=True,
        undo_seconds=1,
        most_replays=1,
        stop_after=0,
        limit=100,
    )


def test_a_delay_has_its_topology_and_its_time() -> None:
    found = read_options({"mode": "delay", "topology_id": "7", "delay": "1h30m", "key": "orders"})
    assert (found.topology_id, found.delay, found.key) == (7, timedelta(minutes=90), "orders")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"mode": "elsewhere"}, "mode"),
        ({"mode": "typed"}, "key"),
        ({"mode": "typed", "exchange": "x" * 256}, "exchange"),
        ({"mode": "typed", "key": "ä" * 128}, "key"),
        ({"mode": "typed", "key": "a\x00"}, "key"),
        ({"mode": "typed", "key": "\ud800"}, "key"),
        ({"mode": "typed", "key": TAP_PREFIX + "orders"}, "key"),
        ({"mode": "typed", "key": PROBE_PREFIX + "orders"}, "key"),
        ({"mode": "delay", "topology_id": "7", "delay": "5s", "key": PROBE_PREFIX + "a"}, "key"),
        ({"key": "orders"}, "key"),
        ({"mode": "first_queue", "exchange": "orders"}, "exchange"),
        ({"mode": "delay", "delay": "5s"}, "topology_id"),
        ({"mode": "delay", "topology_id": "1"}, "delay"),
        ({"mode": "delay", "topology_id": "1", "delay": "0"}, "delay"),
        ({"mode": "delay", "topology_id": "1", "delay": "soon"}, "delay"),
        ({"mode": "delay", "topology_id": "x", "delay": "5s"}, "topology_id"),
        ({"mode": "delay", "topology_id": "1", "delay": "5s", "exchange": "x"}, "exchange"),
        ({"order": "random"}, "order"),
        ({"rate": "0"}, "rate"),
        ({"rate": "-1"}, "rate"),
        ({"rate": "nan"}, "rate"),
        ({"rate": "inf"}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"canary": "-1"}, "canary"),
        ({"canary": "1.5"}, "canary"),
        ({"canary": "²"}, "canary"),
        ({"canary": "9" * 5000}, "canary"),
        ({"canary_seconds": "2d"}, "canary_seconds"),
        ({"canary_seconds": "9" * 5000}, "canary_seconds"),
        ({"canary_goes_on": "perhaps"}, "canary_goes_on"),
        ({"stages": "1%"}, "stages"),
        ({"stages": "10% 5m, 1% 5m"}, "stages"),
        ({"stages": "100% 5m"}, "stages"),
        ({"stages": "nan% 5m"}, "stages"),
        ({"stages": "1% 2d"}, "stages"),
        ({"stages": "1% 5m -1"}, "stages"),
        ({"stages": "1% 5m", "canary": "1"}, "stages"),
        ({"undo_seconds": "2h"}, "undo_seconds"),
        ({"most_replays": "0"}, "most_replays"),
        ({"limit": "0"}, "limit"),
    ],
)
def test_what_makes_no_sense_is_said_at_its_field(said: dict[str, str], field: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_options(said)
    assert list(refused.value.problems) == [field]
    assert refused.value.problems[field].endswith(".")


def test_stages_are_read_counted_and_written_back() -> None:
    options = read_options({"stages": "1% 5m, 12.5% 90s 2", "canary_goes_on": "yes"})
    assert options.stages == ((1.0, 300, 0), (12.5, 90, 2))
    assert format_options(options)["stages"] == "1% 5m, 12.5% 1m 30s 2"
    assert read_options(format_options(options)) == options
    assert [Stage(*one).count(250) for one in options.stages] == [3, 32]
    assert suggest_stages(5000, timedelta(0)) == "1% 1m, 10% 1m"
    assert suggest_stages(50, timedelta(minutes=7)) == "10% 7m"
    assert suggest_stages(9, timedelta(0)) == ""


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(OptionError) as refused:
        read_options({"mode": "typed", "rate": "x", "limit": "y"})
    assert set(refused.value.problems) == {"key", "rate", "limit"}


numbers = st.integers(0, 10**9)
targets = st.one_of(
    st.just({}),
    st.just({"mode": TargetMode.FIRST_QUEUE}),
    st.builds(lambda key: {"mode": TargetMode.TYPED, "key": key}, st.sampled_from(["a", " a.b "])),
    st.builds(
        lambda ms: {
            "mode": TargetMode.DELAY,
            "topology_id": 3,
            "delay": timedelta(milliseconds=ms),
        },
        st.integers(1, 10**9),
    ),
)
optional = st.fixed_dictionaries(
    {},
    optional={
        "order": st.sampled_from(Order),
        "rate": st.sampled_from([0.5, 1.0, 250.0]),
        "canary": numbers,
        "canary_seconds": st.integers(0, 86_400),
        "canary_goes_on": st.booleans(),
        "undo_seconds": st.integers(0, 3600),
        "most_replays": st.integers(1, 1000),
        "stop_after": numbers,
        "limit": st.integers(1, 10**9),
    },
)


@pytest.mark.parametrize(("name", "value"), [("canary_seconds", "20 s"), ("canary_goes_on", "yes")])
def test_an_option_of_a_canary_without_one_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match="Enter a number of canary messages") as refused:
        read_options({name: value})
    assert list(refused.value.problems) == [name]


@given(targets, optional)
def test_options_come_back_from_texts_and_from_rows(
    target: dict[str, object], rest: dict[str, object]
) -> None:
    options = Options(**{**target, **rest})  # type: ignore[arg-type]
    assume(options.canary or not (options.canary_seconds or options.canary_goes_on))
    assert read_options(format_options(options)) == options
    assert read_batch_options(ReplayBatch(**asdict(options))) == options
