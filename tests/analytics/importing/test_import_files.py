"""Imports through Spark, few of them for all tests here, and nearly all in one Spark.

A log of three days is brought into an empty one, its hours in all forms. On the way there the
import is killed while Spark works, and again between two of the files that it moves.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import override_settings

from analytics import launch
from analytics.events import FIELDS, MessageEvent, encode
from analytics.importing import import_files as importing
from analytics.importing.import_files import ImportResult, import_files
from analytics.importing.sources import Refused
from analytics.importing.staging import Scope
from analytics.log import LogError, make_folder, take_lock
from analytics.mappings.mapping import parse
from tests.analytics.builders import (
    NOON,
    a_trip,
    an_entry,
    an_event,
    logged,
    ms,
    results_in,
    write_log,
)
from tests.analytics.importing.forms import write_csv, write_lines
from tests.analytics.warm_spark import RunModule
from tests.builders import eventually

BROKEN = [
    b'{"v":1,"event_id":"torn',
    b"",
    orjson.dumps({"v": 1}),
    b"\xff\xfe",
    encode(an_event()).replace(b'"requested_delay_ms":5000', b'"requested_delay_ms":5000.0'),
    encode(an_event()).replace(b"12:00:00.000000Z", b"12:00:00"),
    encode(an_event()).replace(b"2026-11-20T12:00:00.000000Z", b"0001-01-01T00:00:00+14:00"),
]
BROKEN_NUMBERS = (4_001, 4_003, 4_004, 4_005, 4_006, 4_007)


def some_events() -> list[MessageEvent]:
    """Trips over three days in no order, facts, and what is odd in every way that a line can be."""
    chance = random.Random(5)
    events: list[MessageEvent] = []
    for number in range(400):
        at = NOON + timedelta(hours=chance.uniform(-11, 40), microseconds=number)
        late = ms(chance.uniform(0, 40))
        delay_ms = chance.choice([5000, 3_600_000])
        events += a_trip(f"m{number}", at, late, requested_delay_ms=delay_ms, broker="007")
    old = an_entry("old", published_by="", content_type="", body_base64="", broker="007")
    return [
        *events,
        old,
        an_event(kind="published", source="delayboard", broker="008"),
        an_event(kind="died", routing_key='a,"b"', correlation_id="two\r\nlines", broker="007"),
        an_event(headers_json='{"a":"ü 🐇","n":"\\u0001"}', message_id="x\\x00y", broker="007"),
        an_event(published_at=NOON - ms(0.001), published_at_source="recorded", broker="007"),
    ]


@dataclass(frozen=True)
class Imported:
    """A log, the same as it was recorded, and what the imports of it said."""

    log: Path
    original: Path
    events: list[MessageEvent]
    after_a_kill: list[MessageEvent]
    half: list[MessageEvent]
    noted: set[date]
    whole: ImportResult
    again: ImportResult
    left_behind: list[str]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, warm: RunModule) -> Imported:
    folder = tmp_path_factory.mktemp("import [odd] name")
    events, log, original = some_events(), folder / "log", folder / "original"
    write_log(original, events)
    with override_settings(EVENT_LOG=log), pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_module", warm)
        in_forms, all_again = in_all_forms(folder, events)
        kill_while_spark_works(log, in_forms)
        after_a_kill = logged(log)
        interrupt_while_moving(in_forms)
        half, noted = logged(log), importing._noted_days(log)
        whole = import_files([in_forms])
        (log / importing.DAYS_FILE).unlink()
        return Imported(
            log=log,
            original=original,
            events=events,
            after_a_kill=after_a_kill,
            half=half,
            noted=noted,
            whole=whole,
            again=import_files([*all_again, original, in_forms]),
            left_behind=[path.name for path in log.iterdir() if not path.name.startswith("date=")],
        )


def in_all_forms(folder: Path, events: list[MessageEvent]) -> tuple[Path, list[Path]]:
    """The events spread over four forms in one folder, and all of them in each of two."""
    forms = folder / "forms"
    forms.mkdir()
    write_lines(forms / "a.jsonl", [encode(event) for event in events[0::4]])
    write_lines(forms / "b.jsonl.gz", [encode(event) for event in events[1::4]])
    write_csv(forms / "c.csv", events[2::4])
    lines = folder / "lines"
    write_lines(lines, [encode(event) for event in events[3::4]])
    write_parquet(lines, forms / "table")
    write_csv(folder / "all.csv", events)
    write_lines(lines, [encode(event) for event in events])
    write_parquet(lines, folder / "all")
    return forms, [folder / "all.csv", folder / "all"]


def write_parquet(lines: Path, out: Path) -> None:
    module = "tests.analytics.importing.parquet"
    launch.run_module(module, [str(lines), str(out)], pulse=lambda *_: None)


def kill_while_spark_works(log: Path, forms: Path) -> None:
    """An import reads files of this machine, whatever computes the reports."""
    code = (
        "import django, sys; django.setup(); from pathlib import Path; "
        "from analytics.importing.import_files import import_files; "
        "import_files([Path(sys.argv[1])])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(forms)],
        cwd=launch.ROOT,
        env={**os.environ, "EVENT_LOG": str(log), "SPARK_REMOTE": "sc://127.0.0.1:1"},
    )
    try:
        works = eventually(
            lambda: next(log.glob("_import/*/blockmgr-*"), None), "Spark at work", seconds=120
        )
        assert works.is_dir()
        with take_lock(log, "import") as is_ours:
            assert not is_ours
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()


def interrupt_while_moving(forms: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moved = 0

        def fail_at_the_tenth(folder: Path) -> None:
            nonlocal moved
            moved += 1
            if moved == 10:
                raise OSError(28, "No space left on device")
            make_folder(folder)

        patch.setattr(importing, "make_folder", fail_at_the_tenth)
        with pytest.raises(
            LogError, match=r"cannot write the event log in .*: no space left on device"
        ):
            import_files([forms])


def lines_of(events: list[MessageEvent]) -> list[bytes]:
    return sorted(map(encode, events))


def test_a_kill_leaves_nothing_or_whole_files(imported: Imported) -> None:
    assert imported.after_a_kill == []
    assert 0 < len(imported.half) < len(imported.events)
    assert set(lines_of(imported.half)) < set(lines_of(imported.events))
    # Whoever comes next requests the runs of what it left.
    assert imported.noted >= {event.recorded_at.date() for event in imported.half}


def test_the_log_then_holds_every_event_once_as_it_was_written(imported: Imported) -> None:
    assert lines_of(logged(imported.log)) == lines_of(imported.events)
    assert imported.whole.read == len(imported.events)
    assert imported.whole.known == len(imported.half)
    assert imported.whole.malformed == 0


def test_the_lines_are_byte_for_byte_those_of_the_recorder(imported: Imported) -> None:
    def texts(log: Path) -> list[bytes]:
        return sorted(
            line for path in log.glob("date=*/*/*.jsonl") for line in path.read_bytes().splitlines()
        )

    assert texts(imported.log) == texts(imported.original)


def test_every_file_lies_in_the_hour_of_its_lines_and_in_their_order(imported: Imported) -> None:
    for path in imported.log.glob("date=*/hour=*/*.jsonl"):
        moments = [orjson.loads(line)["recorded_at"] for line in path.read_bytes().splitlines()]
        assert moments == sorted(moments)
        day, hour = path.parent.parent.name, path.parent.name
        assert {moment[:13] for moment in moments} == {f"{day[5:]}T{hour[5:]}"}
        assert path.name.startswith("import.")


def test_importing_again_in_whatever_form_adds_nothing(imported: Imported) -> None:
    times = 4
    assert (imported.again.added, imported.again.malformed) == (0, 0)
    assert imported.again.known == times * len(imported.events)
    assert imported.again.days == []


def test_nothing_else_is_left_in_the_log(imported: Imported) -> None:
    assert imported.left_behind == [".import.lock"]


def test_the_days_are_those_of_the_lines_and_of_the_entries_that_they_end(
    imported: Imported,
) -> None:
    remaining = set(lines_of(imported.events)) - set(lines_of(imported.half))
    expected = set()
    for event in imported.events:
        if encode(event) in remaining:
            delay = ms(event.requested_delay_ms) if event.kind == "delivered" else ms(0)
            expected |= {event.recorded_at.date(), (event.recorded_at - delay).date()}
    assert imported.whole.days == sorted(expected)


def test_the_nightly_figures_are_those_of_the_original(
    imported: Imported, warm: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original's by the real program, which has nothing to warn of."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    results = [
        launch.run_day(
            imported.original, NOON.date(), results_in(imported.original), pulse=lambda *_: None
        )
    ]
    monkeypatch.setattr(launch, "run_module", warm)
    results.append(
        launch.run_day(imported.log, NOON.date(), results_in(imported.log), pulse=lambda *_: None)
    )
    assert results[0].tables["accuracy"]
    assert sorted_rows(results[0]) == sorted_rows(results[1])
    assert results[0].lines == results[1].lines


def sorted_rows(result: launch.Result) -> dict[str, list[str]]:
    return {name: sorted(map(str, rows)) for name, rows in result.tables.items()}


@pytest.fixture(scope="module")
def with_problems(
    tmp_path_factory: pytest.TempPathFactory, warm: RunModule
) -> tuple[ImportResult, Path]:
    """A dry run of a file of several of Spark's blocks, whose end is malformed, a CSV and more."""
    folder = tmp_path_factory.mktemp("problems")
    header = '{"a":"' + "x" * 3000 + '"}'
    many = [encode(an_entry(f"m{n}", headers_json=header)) for n in range(4_000)]
    write_lines(folder / "a.jsonl", [*many, *BROKEN])
    write_csv(folder / "b.csv", [an_event(correlation_id="two\nlines", source="elsewhere")])
    with (folder / "b.csv").open("a") as table:
        table.write("too,few\n" * 20)
    twice = an_event()
    write_lines(folder / "c.jsonl", [encode(twice), encode(twice)])
    with override_settings(EVENT_LOG=folder / "log"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_module", warm)
        return import_files([folder], is_dry=True), folder


def test_malformed_lines_are_told_with_file_and_number(
    with_problems: tuple[ImportResult, Path],
) -> None:
    outcome, folder = with_problems
    reported = [(problem.file, problem.number) for problem in outcome.problems]
    lines = [(str(folder / "a.jsonl"), number) for number in BROKEN_NUMBERS]
    rows = [(str(folder / "b.csv"), number) for number in range(4, 18)]
    assert reported == [*lines, *rows]
    assert outcome.malformed == len(BROKEN_NUMBERS) + 20
    assert "not JSON" in outcome.problems[0].why
    assert "has no field event_id" in outcome.problems[1].why
    assert "must be a integer, not a float" in outcome.problems[3].why
    assert "has no time zone" in outcome.problems[4].why
    assert outcome.problems[6].why == f"The row has 2 cells, but the header has {len(FIELDS)}."


def test_every_line_is_added_known_or_malformed(with_problems: tuple[ImportResult, Path]) -> None:
    outcome, _ = with_problems
    assert (outcome.files, outcome.added, outcome.known) == (3, 4_002, 1)
    assert outcome.read == 4_002 + 1 + outcome.malformed


def test_a_dry_run_leaves_the_log_as_it_was(with_problems: tuple[ImportResult, Path]) -> None:
    _, folder = with_problems
    assert [path.name for path in (folder / "log").iterdir()] == [".import.lock"]


def test_each_table_is_read_by_its_own_schema_with_its_units_and_zones(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch, event_log: Path
) -> None:
    """Nanoseconds, texts, and times without a zone; a file that is none is refused by its name."""
    monkeypatch.setattr(launch, "run_module", warm)
    folder = tmp_path / "tables"
    folder.mkdir()
    at_ns = int(NOON.timestamp()) * 10**9 + 123_456_789
    types = [pa.timestamp("ns", "UTC"), pa.timestamp("ns"), pa.timestamp("us"), pa.int64()]
    for number, kind in enumerate(types):
        value = at_ns if "ns" in str(kind) or kind == pa.int64() else at_ns // 1000
        times = pa.array([value], pa.int64()).cast(kind)
        table = pa.table({"id": [str(number)], "at": times, "wait": [number]})
        pq.write_table(table, folder / f"{number}.parquet", coerce_timestamps=None)
    text = """
format = "parquet"
[fields]
recorded_at = { from = "at", zone = "Europe/Berlin" }
message_id = "id"
requested_delay_ms = "wait"
[[events]]
kind = "delivered"
"""
    scope = Scope("main", "/", topology="orders")
    result = import_files([folder], mapping=parse(text, "test"), scope=scope)
    assert (result.added, result.malformed) == (3, 1)
    assert result.problems[0].file == str(folder / "3.parquet")
    assert "is not a time in ISO 8601" in result.problems[0].why
    micros = NOON.replace(microsecond=123_456)
    in_berlin = micros - timedelta(hours=1)
    assert {event.message_id: event.recorded_at for event in logged(event_log)} == {
        "0": micros,
        "1": in_berlin,
        "2": in_berlin,
    }
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 and so on PAR1")
    with pytest.raises(Refused, match=r"torn\.parquet is no readable Parquet file"):
        import_files([torn], mapping=parse(text, "test"), scope=scope)


def test_equal_lines_of_a_file_and_of_another_topology_are_separate_events(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch, event_log: Path
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    mapping = parse(
        """
format = "json"
[fields]
recorded_at = "at"
requested_delay_ms = "wait"
[[events]]
kind = "delivered"
""",
        "jobs",
    )
    line = orjson.dumps({"at": NOON.isoformat(), "wait": 5000})
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    write_lines(files[0], [line, line])
    # A copy of a part.
    write_lines(files[1], [line])

    def add(topology: str) -> int:
        scope = Scope("main", "/", topology=topology)
        return import_files(files, mapping=mapping, scope=scope).added

    assert [add("orders"), add("orders"), add("billing")] == [2, 0, 2]
    assert len({event.event_id for event in logged(event_log)}) == 4
