"""Compaction: hours of lines become Parquet, with equal figures whatever is late or killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pytest

from analytics import cluster, compacted, launch, nightly
from analytics.jobs import compaction
from analytics.log import hour_folder, make_folder
from tests.analytics import job_cases
from tests.analytics.builders import NOON, a_trip, results_in, write_log
from tests.analytics.warm_spark import RunModule
from tests.rooted import children

DAY = NOON.date()
COMPACTING = "Compacting the lines"
MIDNIGHT = job_cases.MIDNIGHT
HOUR = timedelta(hours=1)
Tables: TypeAlias = dict[str, list[str]]
# And how many lines were read, and how many are in no figure, by reason.
Figures: TypeAlias = tuple[Tables, int, Mapping[str, int]]


class Killed(Exception):
    pass


def url_of(log: Path) -> str:
    return f"file://{log.with_name(log.name + '-parquet')}"


def folders(log: Path) -> list[str]:
    return [str(path) for path in Path(url_of(log)[len("file://") :]).glob(f"v1/date={DAY}/run=*")]


def write_cases(log: Path) -> None:
    cases = (job_cases.odd_ends, job_cases.retried, job_cases.repeats, job_cases.of_the_firehose)
    for case in cases:
        write_log(log, case(), case.__name__)
    (hour_folder(log, NOON) / "torn-1.jsonl").write_bytes(b'{"v":1,"event_id":"t\n{"v":1}\n')


def late_lines() -> list[Any]:
    return list(chain.from_iterable(a_trip(f"late {n}", NOON) for n in range(3)))


def write_all(log: Path) -> None:
    write_cases(log)
    write_log(log, late_lines(), "late")


def compute(log: Path, compact_to: str = "", job: launch.JobReport | None = None) -> Figures:
    result = launch.run_day(
        log, DAY, results_in(log), pulse=lambda *_: None, job=job, compact_to=compact_to
    )
    tables = {name: sorted(map(str, rows)) for name, rows in result.tables.items()}
    return tables, result.lines, result.excluded


def compact(log: Path) -> None:
    launch.run_compaction(log, DAY, url_of(log), pulse=lambda *_: None)


def test_an_hour_is_finished_five_minutes_after_its_end(tmp_path: Path) -> None:
    write_log(tmp_path, [*a_trip(at=NOON), *a_trip(at=NOON + HOUR)])
    end = NOON + HOUR
    assert compacted.finished(tmp_path, DAY, end + timedelta(minutes=4)) == {}
    assert list(compacted.finished(tmp_path, DAY, end + timedelta(minutes=5))) == ["12"]
    assert list(compacted.finished(tmp_path, DAY, end + HOUR * 2)) == ["12", "13"]


def test_hours_with_late_lines_are_read_as_lines_and_make_a_compaction_due(tmp_path: Path) -> None:
    write_log(tmp_path, [*a_trip(at=NOON), *a_trip(at=NOON + HOUR)])
    assert compacted.is_due(tmp_path, DAY, MIDNIGHT)
    hours = compacted.line_sizes(tmp_path, DAY)
    compacted.write(tmp_path, DAY, compacted.Compacted("file:///somewhere", hours))
    given = compacted.input_of(tmp_path, DAY)
    assert (given.hours, given.is_whole, given.files) == (("12", "13"), True, ())
    assert not compacted.is_due(tmp_path, DAY, MIDNIGHT)
    write_log(tmp_path, a_trip(at=NOON), "another")
    given = compacted.input_of(tmp_path, DAY)
    assert (given.hours, given.is_whole) == (("13",), False)
    assert [path.name for path in given.files] == ["another-1.jsonl", "test-1.jsonl"]
    assert compacted.is_due(tmp_path, DAY, MIDNIGHT)


def test_an_hour_whose_lines_are_gone_is_read_from_parquet(tmp_path: Path) -> None:
    write_log(tmp_path, a_trip(at=NOON))
    hours = compacted.line_sizes(tmp_path, DAY)
    compacted.write(tmp_path, DAY, compacted.Compacted("file:///somewhere", hours))
    for path in tmp_path.rglob("*.jsonl"):
        path.unlink()
    assert compacted.input_of(tmp_path, DAY).hours == ("12",)
    assert not compacted.is_due(tmp_path, DAY, MIDNIGHT)
    write_log(tmp_path, a_trip(at=NOON), "late")
    given = compacted.input_of(tmp_path, DAY)
    assert (given.hours, [path.name for path in given.files]) == (("12",), ["late-1.jsonl"])
    assert compacted.is_due(tmp_path, DAY, MIDNIGHT)


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("shrinkage", [8.0, 20.0, 40.0])
def test_files_of_a_large_day_have_128_to_256_megabytes(cores: int, shrinkage: float) -> None:
    for megabytes in range(256, 9000, 7):
        number = compaction.file_count(int(megabytes * 10**6 * shrinkage), shrinkage, cores)
        assert 128 <= megabytes / number <= 256
    assert compaction.file_count(1, shrinkage, cores) == 1
    assert compaction.file_count(10**9, shrinkage, cores) == min(cores, 15)


@pytest.mark.parametrize(("megabytes", "files"), [(300, 2), (485, 2), (600, 4), (2400, 12)])
def test_two_cores_write_as_many_files_each(megabytes: int, files: int) -> None:
    assert compaction.file_count(megabytes * 20 * 10**6, 20.0, 2) == files


def test_the_size_of_files_follows_the_newest_day(tmp_path: Path) -> None:
    assert compacted.shrinkage(tmp_path) == compacted.USUAL_SHRINKAGE
    lines, next_day = 5 * 10**8, MIDNIGHT.date()
    for day, line_bytes, parquet_bytes in (
        *((DAY - timedelta(days=1), lines, 10**7), (DAY, lines, 2 * 10**7)),
        # One of an older version, one whose few lines say nothing.
        *((next_day, lines, 0), (next_day + timedelta(days=1), 500, 500)),
    ):
        make_folder(tmp_path / f"date={day}")
        hours = {"12": {"a": line_bytes}}
        found = compacted.Compacted("file:///somewhere", hours, parquet_bytes)
        compacted.write(tmp_path, day, found)
    assert compacted.shrinkage(tmp_path) == 25


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, warm: RunModule) -> Figures:
    """The figures of all these lines, none of which are compacted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_module", warm)
        log = tmp_path_factory.mktemp("plain") / "log"
        write_all(log)
        return compute(log)


def test_figures_are_those_of_the_lines_from_parquet_and_from_both(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch, expected: Figures
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    log = tmp_path / "log [odd] name"
    write_cases(log)
    compact(log)
    write_log(log, late_lines(), "late")
    given = compacted.input_of(log, DAY)
    assert given.hours
    assert given.files
    assert compute(log) == expected
    job = launch.JobReport()
    assert compute(log, compact_to=url_of(log), job=job) == expected
    # The Parquet that the figures would read is replaced, so this comes first.
    assert COMPACTING in dict(job.steps)
    assert compacted.input_of(log, DAY).files == ()
    (folder,) = folders(log)
    written = compacted.read(log, DAY)
    assert written is not None
    # The file system of Spark keeps sums of blocks in hidden files.
    files = [path for path in Path(folder).rglob("*") if not path.name.startswith(".")]
    assert written.parquet_bytes == sum(path.stat().st_size for path in files)
    parquet = duckdb.read_parquet(f"{folder.replace('[', '[[]')}/*.parquet")
    order = parquet.project("broker, topology, message_id").fetchall()
    assert order == sorted(order, key=lambda row: tuple(text or "" for text in row))
    assert "v" in parquet.columns


def test_a_small_day_is_compacted_beside_its_figures(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch, expected: Figures
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    log = tmp_path / "log"
    write_all(log)
    job = launch.JobReport()
    assert compute(log, compact_to=url_of(log), job=job) == expected
    assert COMPACTING not in dict(job.steps)
    assert dict(job.steps)[f"{COMPACTING}{launch.CONCURRENT}"] > 0
    assert compacted.input_of(log, DAY).files == ()
    assert compute(log) == expected


def test_no_results_are_written_if_the_compaction_fails(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    log = tmp_path / "log"
    write_log(log, a_trip(at=NOON))
    Path(url_of(log)[len("file://") :]).write_text("A file, where a folder is needed.")
    with pytest.raises(launch.LaunchError, match="Parent path is not a directory"):
        compute(log, compact_to=url_of(log))
    assert compacted.read(log, DAY) is None
    assert not Path(results_in(log)[len("file://") :]).exists()


def test_parquet_that_is_missing_is_named_with_what_to_do(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch, expected: Figures
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    log = tmp_path / "log"
    write_all(log)
    compact(log)
    (folder,) = folders(log)
    shutil.rmtree(folder)
    with pytest.raises(launch.LaunchError, match="Parquet of the event log is missing: file:"):
        compute(log)
    # What the sentence says helps, while the lines are there.
    (log / f"date={DAY}" / compacted.MANIFEST).unlink()
    assert compute(log) == expected


def test_lines_in_no_figure_are_counted_by_reason(expected: Figures) -> None:
    reasons = {"torn": 1, "malformed": 1, "repeat": 2, "no_topology": 3, "unknown_source": 0}
    assert expected[2] == reasons


def kill_at(step: int, seconds: float) -> Callable[[int, int], None]:
    """A pulse that has the job and its JVM killed (SIGKILL) so long after the step began."""
    began: list[datetime] = []

    def pulse(done: int, _: int) -> None:
        if done >= step:
            began.append(datetime.now(UTC))
            if datetime.now(UTC) - began[0] >= timedelta(seconds=seconds):
                raise Killed

    return pulse


def test_a_killed_jvm_is_named_as_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_log(log, a_trip(at=NOON))

    def kill_the_jvm(done: int, _: int) -> None:
        jobs = (
            p for p in children(os.getpid()) if "--log" in Path(f"/proc/{p}/cmdline").read_text()
        )
        for jvm in chain.from_iterable(map(children, jobs)) if done >= 1 else ():
            os.kill(jvm, signal.SIGKILL)

    with pytest.raises(launch.LaunchError, match=r"^The job failed: Spark's JVM was killed\. "):
        launch.run_day(log, DAY, results_in(log), pulse=kill_the_jvm)
    # One that ends well is killed too, once Spark has stopped, and nothing fails by that.
    job = launch.JobReport()
    assert compute(log, job=job)[1] == len(a_trip(at=NOON))
    assert "Traceback" not in job.output
    assert "Exception" not in job.output


def check_kills(
    tmp_path: Path, warm: RunModule, expected: Figures, moments: list[tuple[int, float]]
) -> None:
    """Kill compactions and computations there, and complete them."""
    for number, (step, seconds) in enumerate(moments):
        log = tmp_path / f"log{number}"
        write_all(log)
        with suppress(Killed):
            if number % 2:
                url = url_of(log) if number % 4 == 1 else ""
                launch.run_day(
                    log, DAY, results_in(log), pulse=kill_at(step, seconds), compact_to=url
                )
            else:
                launch.run_compaction(log, DAY, url_of(log), pulse=kill_at(step, seconds))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "run_module", warm)
            assert compute(log) == expected
            compact(log)
        assert compacted.input_of(log, DAY).files == ()
        assert len(folders(log)) == 1


def test_a_killed_compaction_leaves_nothing_that_is_read(
    tmp_path: Path, warm: RunModule, expected: Figures
) -> None:
    check_kills(tmp_path, warm, expected, [(1, random.uniform(0, 3))])


@pytest.mark.long
def test_thirty_kills_of_compactions_and_runs(
    tmp_path: Path, warm: RunModule, expected: Figures
) -> None:
    moments = [(random.choice([0, 1, 1, 2]), random.uniform(0, 4)) for _ in range(30)]
    check_kills(tmp_path, warm, expected, moments)


def test_a_compaction_that_ends_before_its_manifest_is_repeated(
    tmp_path: Path, warm: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What expired goes with it, and nothing is left of the folder that nobody names."""
    monkeypatch.setattr(launch, "run_module", warm)
    write_log(tmp_path / "log", late_lines())
    compact(tmp_path / "log")
    manifest = tmp_path / "log" / f"date={DAY}" / compacted.MANIFEST
    manifest.unlink()
    (before,) = folders(tmp_path / "log")
    compact(tmp_path / "log")
    (after,) = folders(tmp_path / "log")
    assert before != after
    compacted.expire(tmp_path / "log", manifest.parent)
    assert compacted.is_due(tmp_path / "log", DAY, MIDNIGHT)
    compact(tmp_path / "log")
    assert folders(tmp_path / "log") == []
    assert compacted.expired(tmp_path / "log") == {}


@pytest.mark.parametrize("master", ["", "spark://elsewhere:7077"])
def test_the_nightly_run_compacts_a_day_that_is_over_first(
    event_log: Path, db: None, monkeypatch: pytest.MonkeyPatch, settings: Any, master: str
) -> None:
    """In one Spark with the figures; where these are computed elsewhere, in one of its own."""
    settings.PARQUET_URL = "s3a://bucket/log"
    write_log(event_log, a_trip())
    asked = []
    if master:
        monkeypatch.setenv("SPARK_MASTER", master)

    def run_module(module: str, arguments: list[str], **_: Any) -> None:
        urls = [url for name, url in pairwise(arguments) if name in ("--url", "--compact")]
        asked.append((module, *urls))
        if module == launch.JOBS:
            raise launch.NoData("Nothing was there.")

    monkeypatch.setattr(launch, "run_module", run_module)
    # Nobody answers there.
    monkeypatch.setattr(cluster, "check", lambda: None)
    nightly.run_day(DAY)
    alone = [(launch.COMPACTION_JOB, "s3a://bucket/log"), (launch.JOBS, "")]
    assert asked == (alone if master else [(launch.JOBS, "s3a://bucket/log")])
