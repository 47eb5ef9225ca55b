"""The jobs through the real program, once for all tests here: starting Spark takes seconds.

The log is made by hand; each topology in it is one case. DuckDB computes the percentiles a
second time from the same files, by another way of pairing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics import launch
from analytics.events import MessageEvent
from analytics.jobs.session import MISSING
from analytics.launch import Result
from tests.analytics.builders import (
    DELAY,
    NOON,
    a_trip,
    an_entry,
    an_event,
    an_exit,
    ms,
    write_log,
)

DAY = NOON.date()
MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def many_trips() -> list[MessageEvent]:
    """A heavy tail of lateness, messages in the order of nothing at all."""
    chance = random.Random(7)
    events = []
    for number in range(600):
        delay_ms = chance.choice([5000, 60_000])
        events += a_trip(
            f"m{number}",
            NOON + ms(chance.uniform(0, 3_000_000)),
            ms(chance.lognormvariate(1.5, 1.2) - 1),
            topology="many",
            requested_delay_ms=delay_ms,
        )
    return events


def equal_messages() -> list[MessageEvent]:
    """A heartbeat each minute through five minutes of delay, without id, all the same content.

    It runs from the day before to the day after; those of 12:10 and 23:59 never come back.
    """
    same: dict[str, Any] = {
        "message_id": "",
        "content_id": "beat",
        "topology": "beats",
        "requested_delay_ms": 300_000,
    }
    start = datetime(2026, 11, 20, tzinfo=UTC) - 5 * MINUTE
    lost = (NOON + 10 * MINUTE, MIDNIGHT - MINUTE)
    events = []
    for number in range(24 * 60 + 20):
        entry, exit_ = a_trip(at=start + number * MINUTE, late=ms(3), **same)
        events += [entry] if entry.recorded_at in lost else [entry, exit_]
    return events


def a_burst_of_equal_messages() -> list[MessageEvent]:
    same: dict[str, Any] = {"message_id": "", "content_id": "burst", "topology": "burst"}
    return [event for n in range(50) for event in a_trip(at=NOON + ms(n), late=ms(4), **same)]


def odd_ends() -> list[MessageEvent]:
    """Each kind of entry that is not measured, and a delay over midnight that is."""
    of: dict[str, Any] = {"topology": "odd"}
    behind = an_entry("behind", caught_up=False, **of)
    late_exit = an_exit("late exit", caught_up=False, **of)
    return [
        *a_trip("measured", late=ms(20), **of),
        *a_trip("early", late=ms(-62.5), **of),
        *a_trip("over midnight", MIDNIGHT - ms(100), late=ms(8), **of),
        *[behind, an_exit("behind", **of)],
        *[an_entry("late exit", **of), late_exit],
        an_entry("missing", **of),
        an_exit("entered before the tap", **of),
        an_entry("two days", topology="open", requested_delay_ms=172_800_000),
    ]


def retried() -> list[MessageEvent]:
    """Ten messages: 4 fail once, 2 of them twice, 1 of those a third time by expiry."""
    of: dict[str, Any] = {"topology": "shop"}
    events = [an_event(kind="published", message_id=f"s{n}", attempt=0, **of) for n in range(10)]
    for attempt, numbers in ((1, range(4)), (2, range(2)), (3, range(1))):
        reason = "expired" if attempt == 3 else "rejected"
        for number in numbers:
            death: dict[str, Any] = {"death_reason": reason, "death_queue": "shop"}
            at = NOON + attempt * MINUTE
            events.append(an_entry(f"s{number}", at, attempt=attempt, **of, **death))
            events.append(an_exit(f"s{number}", at + DELAY, attempt=attempt, **of))
    return events


def repeats() -> list[MessageEvent]:
    """Three trips; the recorder crashed and recorded the second and its exit once more."""
    of: dict[str, Any] = {"topology": "again"}
    twice = a_trip("r2", late=ms(5), **of)
    again = [
        an_event(
            kind=event.kind,
            message_id="r2",
            recorded_at=event.recorded_at + MINUTE,
            redelivered=True,
            caught_up=False,
            **of,
        )
        for event in twice
    ]
    return [*a_trip("r1", **of), *twice, *again, *a_trip("r3", **of)]


def told_twice() -> list[MessageEvent]:
    """Three trips and four without an id that a tap saw, and a trace too; two it alone saw."""
    of: dict[str, Any] = {"topology": "twice"}
    same: dict[str, Any] = of | {"message_id": "", "content_id": "tap's"}
    of_trace: dict[str, Any] = {"source": "import", "caught_up": False}
    seen = [event for name in ("t1", "t2", "t3") for event in a_trip(name, late=ms(5), **of)]
    beats = [event for n in range(4) for event in a_trip(at=NOON + n * MINUTE, **same)]
    copies = [
        replace(event, event_id=f"trace:{n}", content_id="trace's", **of_trace)
        for n, event in enumerate([*seen, *beats])
    ]
    alone = [event for name in ("t4", "t5") for event in a_trip(name, **of, **of_trace)]
    return [*seen, *beats, *copies, *alone]


def facts() -> list[MessageEvent]:
    """What Delayboard stated itself, of a message that a tap saw too."""
    return [
        an_event(kind="published", source="delayboard", message_id="s0", topology="shop"),
        an_event(kind="scheduled", source="delayboard", message_id="x", topology="fact"),
    ]


def of_the_firehose() -> list[MessageEvent]:
    """A message in a hold queue that no tap sees, and what else passes in the vhost."""
    of: dict[str, Any] = {"topology": "held", "source": "firehose"}
    none: dict[str, Any] = {"topology": "", "source": "firehose"}
    return [
        an_entry("h1", **of),
        an_exit("h1", caught_up=False, **of),
        *a_trip("h1", **none),
        an_event(kind="published", message_id="h2", **none),
    ]


@pytest.fixture(scope="session")
def a_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    cases = [
        many_trips,
        equal_messages,
        a_burst_of_equal_messages,
        odd_ends,
        retried,
        repeats,
        told_twice,
    ]
    for case in [*cases, of_the_firehose, facts]:
        write_log(folder, case(), case.__name__)
    torn = folder / "date=2026-11-20/hour=12/torn-1.jsonl"
    torn.write_bytes(b'{"v":1,"event_id":"t\n{"v":1}\n{"event_id":"x","kind":7,"recorded_at":[]}\n')
    return folder


@pytest.fixture(scope="session")
def result(a_log: Path) -> Result:
    return launch.run_day(a_log, DAY, pulse=lambda *_: None)


def accuracy_of(result: Result, topology: str, delay_ms: int = 5000) -> Mapping[str, Any]:
    rows = [
        row
        for row in result.tables["accuracy"]
        if (row["topology"], row["requested_delay_ms"]) == (topology, delay_ms)
    ]
    assert len(rows) == 1
    return rows[0]


def counts(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    return row["measured"], row["uncounted"], row["open"], row["missing"]


@pytest.mark.parametrize("delay_ms", [5000, 60_000])
def test_percentiles_equal_those_of_duckdb(result: Result, a_log: Path, delay_ms: int) -> None:
    """DuckDB joins by message id where Spark pairs by rank in time."""
    oracle = duckdb.sql(
        f"""
        with events as (
            from read_json('{a_log}/*/*/many_trips-*.jsonl', columns = {{
                kind: 'varchar', message_id: 'varchar', recorded_at: 'timestamp',
                requested_delay_ms: 'bigint'
            }})
        ), late as (
            select (epoch_us(left_.recorded_at) - epoch_us(entered.recorded_at)
                - entered.requested_delay_ms * 1000) / 1000 as ms
            from events entered join events left_ using (message_id)
            where entered.kind = 'scheduled' and left_.kind = 'delivered'
            and entered.requested_delay_ms = {delay_ms}
        )
        select count(*), quantile_cont(ms, 0.5), quantile_cont(ms, 0.95),
            quantile_cont(ms, 0.99), max(ms), avg((ms < -50)::int) from late
        """
    )
    assert oracle is not None
    (expected,) = oracle.fetchall()
    row = accuracy_of(result, "many", delay_ms)
    names = ("measured", "p50_ms", "p95_ms", "p99_ms", "max_ms", "early_share")
    assert expected[0] > 200
    assert [row[name] for name in names] == pytest.approx(expected, rel=1e-9)


def test_equal_messages_are_paired_by_their_time_and_a_lost_one_shifts_none(
    result: Result,
) -> None:
    row = accuracy_of(result, "beats", 300_000)
    entered_today = 24 * 60
    assert counts(row) == (entered_today - 2, 0, 0, 2)
    assert (row["p50_ms"], row["p99_ms"], row["max_ms"]) == (3.0, 3.0, 3.0)


def test_equal_messages_of_one_moment_are_paired_in_order(result: Result) -> None:
    row = accuracy_of(result, "burst")
    assert counts(row) == (50, 0, 0, 0)
    assert row["max_ms"] == 4.0


def test_every_entry_is_measured_uncounted_open_or_missing(result: Result) -> None:
    row = accuracy_of(result, "odd")
    assert counts(row) == (3, 2, 0, 1)
    assert (row["max_ms"], row["early_share"]) == (20.0, pytest.approx(1 / 3))


def test_a_delay_that_is_not_due_when_the_data_ends_is_open_and_has_no_percentiles(
    result: Result,
) -> None:
    row = accuracy_of(result, "open", 172_800_000)
    now_is_past = datetime.now(UTC) > NOON + timedelta(days=2)
    assert counts(row) == ((0, 0, 0, 1) if now_is_past else (0, 0, 1, 0))
    assert (row["p50_ms"], row["max_ms"], row["early_share"]) == (None, None, None)


def test_a_copy_recorded_twice_counts_once(result: Result) -> None:
    assert counts(accuracy_of(result, "again")) == (3, 0, 0, 0)
    assert {"messages": 3, "retried": 0}.items() <= retries_of(result, "again").items()


def test_what_a_tap_and_an_import_tell_of_counts_once(result: Result) -> None:
    assert counts(accuracy_of(result, "twice")) == (7, 2, 0, 0)
    assert retries_of(result, "twice")["messages"] == 9


def retries_of(result: Result, topology: str) -> Mapping[str, Any]:
    return next(row for row in result.tables["retries"] if row["topology"] == topology)


def test_retry_rates_count_messages_attempts_and_deaths(result: Result) -> None:
    assert {"messages": 10, "retried": 4, "retried_share": 0.4}.items() <= retries_of(
        result, "shop"
    ).items()
    attempts = {
        row["attempt"]: row["messages"]
        for row in result.tables["attempts"]
        if row["topology"] == "shop"
    }
    assert attempts == {1: 4, 2: 2, 3: 1}
    deaths = {(row["reason"], row["queue"]): row["deaths"] for row in result.tables["deaths"]}
    assert deaths == {("rejected", "shop"): 6, ("expired", "shop"): 1}


def test_messages_of_equal_content_are_counted_as_often_as_they_passed(result: Result) -> None:
    assert retries_of(result, "burst")["messages"] == 50


def test_what_delayboard_states_itself_is_not_counted_again(result: Result) -> None:
    topologies = {row["topology"] for table in result.tables.values() for row in table}
    seen = {"many", "beats", "burst", "odd", "open", "shop", "again", "held", "twice"}
    assert topologies == seen


def test_what_a_consumer_took_is_counted_and_not_measured(result: Result) -> None:
    assert counts(accuracy_of(result, "held")) == (0, 1, 0, 0)
    assert retries_of(result, "held")["messages"] == 1


def test_the_histogram_holds_every_measured_message_in_the_right_bucket(result: Result) -> None:
    per_delay: dict[tuple[str, int], int] = {}
    for row in result.tables["histogram"]:
        key = (row["topology"], row["requested_delay_ms"])
        per_delay[key] = per_delay.get(key, 0) + row["messages"]
    assert per_delay == {
        (row["topology"], row["requested_delay_ms"]): row["measured"]
        for row in result.tables["accuracy"]
        if row["measured"]
    }
    odd = {
        (row["hour_at"][:16], row["from_ms"], row["to_ms"]): row["messages"]
        for row in result.tables["histogram"]
        if row["topology"] == "odd"
    }
    assert odd == {
        ("2026-11-20T12:00", 20.0, 50.0): 1,
        ("2026-11-20T12:00", None, -50.0): 1,
        ("2026-11-20T23:00", 5.0, 10.0): 1,
    }


def test_unreadable_lines_are_counted(result: Result, a_log: Path) -> None:
    day = (a_log / "date=2026-11-20").rglob("*.jsonl")
    assert result.lines == sum(path.read_bytes().count(b"\n") for path in day)
    assert result.malformed == 3


def test_a_day_without_lines_says_so_and_starts_no_spark(tmp_path: Path) -> None:
    with pytest.raises(launch.NoData, match="holds nothing for 2026-11-19"):
        launch.run_day(tmp_path, date(2026, 11, 19), pulse=lambda *_: None)


def test_a_day_of_facts_and_torn_lines_has_no_data_either(tmp_path: Path) -> None:
    write_log(tmp_path, facts())
    (tmp_path / "date=2026-11-20/hour=12/torn-1.jsonl").write_bytes(b"{")
    program = subprocess.run(
        [
            sys.executable,
            "-m",
            "analytics.jobs",
            "--log",
            tmp_path,
            "--day",
            "2026-11-20",
            "--out",
            tmp_path,
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONWARNINGS": "error", "PYTHONPATH": str(launch.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert program.returncode == 4
    said = json.loads(program.stdout.splitlines()[-1])["no_data"]
    assert said == (
        "The event log of 2026-11-20 holds 3 lines, "
        "but none that a tap recorded (1 cannot be read)."
    )


def test_spark_connect_without_its_packages_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, retried())
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(launch.LaunchError) as failed:
        launch.run_day(tmp_path, DAY, pulse=lambda *_: None)
    assert str(failed.value) == f"The job ended with exit code 1: {MISSING}"
    assert "requirements-spark-connect.txt" in MISSING
