"""The jobs through Spark, once for all tests here: starting it takes seconds.

The log is made by hand; each topology in it is one case. DuckDB computes the percentiles a
second time from the same files, by another way of pairing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics import buckets, launch
from analytics.jobs.session import MISSING, TINY_INPUT_BYTES
from analytics.jobs.tables import trails
from analytics.launch import Result
from tests.analytics import job_cases, letter_oracle, report_oracle, retry_oracle
from tests.analytics.builders import (
    NOON,
    results_in,
    write_log,
)
from tests.analytics.warm_spark import RunModule

DAY = NOON.date()
MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)
END = MIDNIGHT
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="session")
def a_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    for name, events in job_cases.all_cases().items():
        write_log(folder, events, name)
    torn = folder / "date=2026-11-20/hour=12/torn-1.jsonl"
    torn.write_bytes(b'{"v":1,"event_id":"t\n{"v":1}\n{"event_id":"x","kind":7,"recorded_at":[]}\n')
    return folder


@pytest.fixture(scope="session")
def result(a_log: Path, warm: RunModule) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        # As a large day, whose queries are compiled; those of a small one are interpreted.
        # All delays have ended, those of thirty days too.
        past = ["--now", (END + timedelta(days=40)).isoformat()]

        def run_module(module: str, arguments: Sequence[str], **more: Any) -> None:
            warm(module, [*arguments, *past], input_bytes=TINY_INPUT_BYTES, **more)

        patch.setattr(launch, "run_module", run_module)
        parking = {"main": [report_oracle.PARKING]}
        results = results_in(a_log)
        return launch.run_day(a_log, DAY, results, pulse=lambda *_: None, parking=parking)


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
        select count(*), quantile_cont(ms, 0.5), quantile_cont(ms, 0.9),
            quantile_cont(ms, 0.95), quantile_cont(ms, 0.99), max(ms),
            avg((ms < -50)::int) from late
        """
    )
    assert oracle is not None
    (expected,) = oracle.fetchall()
    row = accuracy_of(result, "many", delay_ms)
    names = ("measured", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "early_share")
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
    assert counts(row) == (3, 3, 0, 1)
    assert uncounted_of(result, "odd") == {("", 5000, "backlog"): 2, ("", 5000, "no_entry"): 1}
    assert (row["max_ms"], row["early_share"]) == (20.0, pytest.approx(1 / 3))


def test_a_delay_that_is_not_due_when_the_data_ends_is_open_and_has_no_percentiles(
    result: Result,
) -> None:
    row = accuracy_of(result, "open", 60 * 86_400_000)
    assert counts(row) == (0, 0, 1, 0)
    assert (row["p50_ms"], row["max_ms"], row["early_share"]) == (None, None, None)


def test_a_copy_recorded_twice_counts_once(result: Result) -> None:
    assert counts(accuracy_of(result, "again")) == (3, 0, 0, 0)
    assert {"messages": 3, "retried": 0}.items() <= retries_of(result, "again").items()


def test_repeats_of_equal_messages_without_an_id_are_counted_beside_what_they_hide(
    result: Result,
) -> None:
    losses = {
        row["fate"]: row["messages"]
        for row in result.tables["losses"]
        if row["topology"] == "prefetch"
    }
    assert losses == {"unexplained": 20, "repeated": 20}


def test_what_a_tap_and_an_import_tell_of_counts_once(result: Result) -> None:
    assert counts(accuracy_of(result, "twice")) == (7, 2, 0, 0)
    assert uncounted_of(result, "twice") == {("", 5000, "backlog"): 2}
    assert retries_of(result, "twice")["messages"] == 9


def uncounted_of(result: Result, topology: str) -> dict[tuple[str, int, str], int]:
    return {
        (row["queue"], row["requested_delay_ms"], row["reason"]): row["messages"]
        for row in result.tables["uncounted"]
        if row["topology"] == topology
    }


def retries_of(result: Result, topology: str) -> Mapping[str, Any]:
    rows = [row for row in result.tables["retries"] if row["topology"] == topology]
    return {name: sum(row[name] for row in rows) for name in ("messages", "retried")}


def test_retry_rates_count_messages_attempts_and_deaths(result: Result) -> None:
    assert retries_of(result, "shop") == {"messages": 10, "retried": 4}
    assert attempts_of(result, "shop") == {1: 4, 2: 2, 3: 1}


def test_messages_of_equal_content_are_counted_as_often_as_they_passed(result: Result) -> None:
    assert retries_of(result, "burst")["messages"] == 50


def test_what_delayboard_states_itself_is_not_counted_again(result: Result) -> None:
    tables = (
        table
        for name, table in result.tables.items()
        if table and name != "probes" and "topology" in table[0]
    )
    topologies = {row["topology"] for table in tables for row in table}
    seen = {
        "many",
        "beats",
        "burst",
        "odd",
        "open",
        "shop",
        "again",
        "prefetch",
        "held",
        "twice",
        "stuck",
    }
    seen |= {"night", "later", "letters", "moved", "moved-to", "rescheduled"}
    assert topologies == seen | {"", "traced", "hostile", *job_cases.generated(), "truth"}


def test_a_delivery_of_the_firehose_is_measured_or_has_its_one_reason(result: Result) -> None:
    row = accuracy_of(result, "held")
    assert counts(row) == (1, 3, 0, 0)
    assert (row["taken"], row["max_ms"]) == (1, 600_000.0)
    assert uncounted_of(result, "held") == {
        ("", 5000, "backlog"): 1,
        ("", 5000, "no_entry"): 1,
        ("", 5000, "two_clocks"): 1,
    }
    assert retries_of(result, "held")["messages"] == 5


def test_a_trace_proves_messages_retries_and_deaths_by_its_deliveries(result: Result) -> None:
    assert {"messages": 40, "retried": 15}.items() <= retries_of(result, "traced").items()
    assert attempts_of(result, "traced") == {1: 15, 2: 3}
    assert uncounted_of(result, "traced") == {("", 5000, "no_entry"): 18}


def test_histories_that_nobody_foresaw_stop_nothing(result: Result) -> None:
    assert retries_of(result, "hostile")["messages"] == 7


def test_a_delay_queue_known_from_a_trace_alone_is_measured_by_the_trace(result: Result) -> None:
    (row,) = (row for row in result.tables["accuracy"] if row["topology"] == "")
    assert (row["queue"], row["requested_delay_ms"]) == ("wait-5s", 5000)
    assert counts(row) == (4, 1, 0, 0)
    assert (row["taken"], row["p50_ms"], row["max_ms"]) == (4, 7.0, 7.0)
    assert uncounted_of(result, "") == {
        ("wait-5s", 5000, "no_entry"): 1,
        ("wait-unknown", 0, "no_delay"): 4,
    }


@pytest.mark.parametrize("topology", ["whole", "half", "rare"])
def test_retries_and_deaths_are_those_of_the_oracle(result: Result, topology: str) -> None:
    expected = retry_oracle.count(
        job_cases.generated()[topology], MIDNIGHT - timedelta(days=1), MIDNIGHT
    )
    row = retries_of(result, topology)
    assert (row["messages"], row["retried"]) == (expected.messages, expected.retried)
    assert attempts_of(result, topology) == expected.attempts
    assert expected.retried > 10


def attempts_of(result: Result, topology: str) -> dict[int, int]:
    rows = (row for row in result.tables["attempts"] if row["topology"] == topology)
    return {row["attempt"]: row["messages"] for row in rows}


def test_the_histogram_holds_every_measured_message_in_the_right_bucket(result: Result) -> None:
    measured: Counter[str] = Counter()
    for row in result.tables["histogram"]:
        measured[row["topology"] or row["queue"]] += row["messages"]
    expected: Counter[str] = Counter()
    for row in result.tables["accuracy"]:
        expected[row["topology"] or row["queue"]] += row["measured"]
    assert measured == +expected
    odd = {
        (row["hour_at"][:16], row["bucket"]): row["messages"]
        for row in result.tables["histogram"]
        if row["topology"] == "odd"
    }
    assert odd == {
        ("2026-11-20T12:00", buckets.bucket_of(20)): 1,
        ("2026-11-20T12:00", buckets.EARLY): 1,
        ("2026-11-20T23:00", buckets.bucket_of(8)): 1,
    }


def rows_of(result: Result, table: str) -> list[Mapping[str, Any]]:
    return [row for row in result.tables[table] if row.get("topology") == report_oracle.TOPOLOGY]


@pytest.fixture(scope="session")
def truth() -> report_oracle.Counted:
    return report_oracle.count(report_oracle.a_log())


def test_the_histogram_by_destination_delay_and_hour_is_that_of_the_oracle(
    result: Result, truth: report_oracle.Counted
) -> None:
    found = {
        (row["destination"], row["delay_bucket"], row["hour_at"][:13], row["bucket"]): row[
            "messages"
        ]
        for row in rows_of(result, "histogram")
    }
    assert found == truth.histogram
    assert len({delay for _, delay, _, _ in found}) > 5


def test_what_entered_is_delivered_waiting_or_missing_as_the_oracle_says(
    result: Result, truth: report_oracle.Counted
) -> None:
    names = ("entered", "delivered", "missing")
    found = {
        (row["destination"], row["hour_at"][:13]): tuple(row[name] for name in names)
        for row in rows_of(result, "hours")
    }
    expected = {place: tuple(n[name] for name in names) for place, n in truth.hours.items()}
    assert found == expected
    for row in result.tables["hours"]:
        assert row["entered"] == row["delivered"] + row["waiting"] + row["missing"]


def test_what_seems_early_is_counted_by_how_much(
    result: Result, truth: report_oracle.Counted
) -> None:
    found = {
        (row["destination"], row["hour_at"][:13], row["bucket"]): row["messages"]
        for row in rows_of(result, "early")
    }
    assert found == truth.early
    assert max(bucket for *_, bucket in found) > buckets.bucket_of(100)


def test_the_outcome_of_every_retried_message_is_that_of_the_oracle(
    result: Result, truth: report_oracle.Counted
) -> None:
    found = {
        (row["first"], row["last"], row["outcome"]): row["messages"]
        for row in rows_of(result, "outcomes")
    }
    assert found == truth.outcomes
    assert {outcome for _, _, outcome in found} == {"left", "exhausted"}
    recoveries = {row["bucket"]: row["messages"] for row in rows_of(result, "recoveries")}
    assert recoveries == truth.recoveries
    (row,) = rows_of(result, "retries")
    assert (row["messages"], row["retried"]) == truth.retried


def test_an_attempt_across_midnight_counts_on_the_day_on_which_it_ended(result: Result) -> None:
    night = [row for row in result.tables["outcomes"] if row["topology"] == "night"]
    assert {(row["first"], row["last"], row["outcome"]): row["messages"] for row in night} == {
        (1, 1, "left"): 2,
        (1, 1, "open"): 1,
        (1, 0, "open"): 1,
        (1, 1, "exhausted"): 1,
        (3, 3, "left"): 1,
    }
    took = [row for row in result.tables["recoveries"] if row["topology"] == "night"]
    assert {row["bucket"]: row["messages"] for row in took} == {
        buckets.bucket_of(5000): 2,
        buckets.bucket_of(75_000): 1,
    }


def test_failures_are_counted_by_exception_and_routing_key_without_numbers(
    result: Result, truth: report_oracle.Counted
) -> None:
    found = {
        (row["exception_type"], row["routing_key"]): row["messages"]
        for row in rows_of(result, "causes")
    }
    assert found == truth.causes
    assert set(found) == {("TimeoutError", "order.{n}"), ("ValueError", "mail")}
    by_hour = {row["hour_at"][:13]: row["messages"] for row in rows_of(result, "failures")}
    assert by_hour == truth.failures


def test_each_missing_message_died_was_cancelled_or_is_unexplained_and_named(
    result: Result, truth: report_oracle.Counted
) -> None:
    found: Counter[str] = Counter()
    for row in rows_of(result, "losses"):
        found[row["fate"]] += row["messages"]
    assert found == truth.fates
    # Each destination has as many as its hours say are missing.
    by_destination: Counter[str] = Counter()
    for row in rows_of(result, "losses"):
        by_destination[row["destination"]] += row["messages"]
    for row in rows_of(result, "hours"):
        by_destination[row["destination"]] -= row["missing"]
    assert not +by_destination
    assert not -by_destination
    assert set(found) == {"died", "cancelled", "moved", "unexplained"}
    assert {row["key"] for row in rows_of(result, "unexplained")} <= truth.unexplained
    assert len(rows_of(result, "unexplained")) == min(20, len(truth.unexplained))


def test_a_message_that_is_cancelled_on_a_later_day_is_explained(result: Result) -> None:
    (loss,) = [row for row in result.tables["losses"] if row["topology"] == "later"]
    assert (loss["fate"], loss["messages"]) == ("cancelled", 1)


def test_a_move_explains_one_message_of_the_topology_that_it_left(result: Result) -> None:
    found = Counter[tuple[str, str]]()
    for row in result.tables["losses"]:
        found[row["topology"], row["fate"]] += row["messages"]
    assert (found["moved", "moved"], found["moved", "unexplained"]) == (3, 2)
    assert (found["moved-to", "moved"], found["moved-to", "unexplained"]) == (0, 1)


def test_a_rescheduled_message_is_as_late_as_its_new_time_says(result: Result) -> None:
    new, old = (accuracy_of(result, "rescheduled", delay) for delay in (120_000, 3_600_000))
    assert (counts(new), new["max_ms"]) == ((1, 0, 0, 0), 7.0)
    assert counts(old) == (0, 0, 0, 1)
    (loss,) = [row for row in result.tables["losses"] if row["topology"] == "rescheduled"]
    assert (loss["fate"], loss["messages"]) == ("moved", 1)


def test_dead_letters_are_counted_by_what_delayboard_did_with_them(result: Result) -> None:
    events = chain.from_iterable(job_cases.all_cases().values())
    of_day = [event for event in events if event.recorded_at >= report_oracle.BEGIN]
    expected = letter_oracle.count(of_day, END)
    names = ("queue", "reason", "origin", "exception_type", "kind")
    found = {
        (*(row[name] for name in names), row["hour_at"][11:13]): row["messages"]
        for row in result.tables["dead_letters"]
    }
    assert found == expected.letters
    assert {kind for *_, kind, _ in found} == {"arrived", "parked", "replayed", "discarded"}


def test_retried_messages_are_counted_by_the_groups_of_their_first_failure(
    result: Result, truth: report_oracle.Counted
) -> None:
    names = ("dimension", "value", "first", "last", "outcome")
    found = {
        tuple(row[name] for name in names): row["messages"] for row in rows_of(result, "groups")
    }
    assert found == truth.groups
    assert {dimension for dimension, *_ in found} == set(trails.GROUPS)


def test_messages_and_retried_ones_are_counted_by_publisher_and_version(
    result: Result, truth: report_oracle.Counted
) -> None:
    found = {
        (row["publisher"], row["version"]): (row["messages"], row["retried"])
        for row in rows_of(result, "releases")
    }
    assert found == truth.releases
    assert {version for _, version in found} == {None, "1.9", "2.0"}


def test_probes_are_measured_apart_from_messages(result: Result) -> None:
    late: Counter[int | str] = Counter()
    for row in result.tables["probes"]:
        fate = "backlog" if row["has_left"] else "missing"
        late[fate if row["bucket"] is None else row["bucket"]] += row["messages"]
        assert row["topology"] == "probed"
        assert buckets.DELAY_EDGES_MS[row["delay_bucket"] - 1] == 5000
    expected = Counter(buckets.bucket_of(float(n)) for n in range(1, 41))
    assert late == expected | Counter({"backlog": 1, "missing": 1})
    others = (rows for name, rows in result.tables.items() if name != "probes")
    assert not [row for rows in others for row in rows if row.get("topology") == "probed"]


def test_unreadable_lines_are_counted(result: Result, a_log: Path) -> None:
    day = (a_log / "date=2026-11-20").rglob("*.jsonl")
    assert result.lines == sum(path.read_bytes().count(b"\n") for path in day)
    assert result.malformed == 3


def test_a_day_without_lines_says_so_and_starts_no_spark(tmp_path: Path) -> None:
    with pytest.raises(launch.NoData, match="has no data for 2026-11-19"):
        launch.run_day(tmp_path, date(2026, 11, 19), results_in(tmp_path), pulse=lambda *_: None)


def test_a_day_of_facts_and_torn_lines_has_no_data_either(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, job_cases.facts())
    (tmp_path / "date=2026-11-20/hour=12/torn-1.jsonl").write_bytes(b"{")
    monkeypatch.setattr(launch, "run_module", warm)
    with pytest.raises(launch.NoData) as nothing:
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None)
    assert str(nothing.value) == (
        "The event log of 2026-11-20 has 3 lines, but no readable line of a tap (1 are malformed)."
    )


def test_spark_connect_without_its_packages_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, job_cases.retried())
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(launch.LaunchError) as failed:
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None)
    assert str(failed.value) == f"The job failed: {MISSING}"
    assert "requirements-spark-connect.txt" in MISSING


def test_a_stuck_message_that_is_delivered_minutes_late_counts_as_that_late(result: Result) -> None:
    row = accuracy_of(result, "stuck")
    assert counts(row) == (4, 0, 0, 1)
    assert (row["p50_ms"], row["max_ms"]) == (180_000, 180_000)
