"""A day computed by a cluster, with its log at a path that is not the recorder's, equals the day
computed on this machine, row by row (docs/cluster.md).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from analytics import compacted, launch
from analytics.cluster import check
from analytics.launch import JobReport, Result
from tests.analytics import job_cases, report_oracle
from tests.analytics.builders import NOON, write_log
from tests.analytics.cluster import servers

pytestmark = pytest.mark.long

DAY = NOON.date()


def silent(*_: int) -> None: ...


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster") / "log"
    for name, events in job_cases.all_cases().items():
        write_log(folder, events, name)
    write_log(folder, report_oracle.a_log(), "truth")
    return folder


@pytest.fixture(scope="module")
def expected(log: Path) -> Result:
    """The figures of local mode, of the lines."""
    return launch.run_day(log, DAY, f"file://{log.parent}/results-local", pulse=silent)


@pytest.fixture(scope="module")
def parquet_only(log: Path, expected: Result) -> Path:
    """The log after its compaction to another path, when its lines are older than the retention."""
    for day in sorted(path.name.removeprefix("date=") for path in log.glob("date=*")):
        one = DAY.fromisoformat(day)
        launch.run_compaction(log, one, f"file://{log.parent}/bucket", pulse=silent)
        for hour in (log / f"date={day}").glob("hour=*"):
            shutil.rmtree(hour)
        assert compacted.input_of(log, one).files == ()
    return log


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return servers.python_with_connect(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture(params=["SPARK_MASTER", "SPARK_REMOTE"])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A cluster that the one setting names."""
    start: Callable[[Path], AbstractContextManager[str]] = servers.standalone
    if request.param == "SPARK_REMOTE":
        start = servers.connect
        monkeypatch.setattr(sys, "executable", str(request.getfixturevalue("python")))
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with start(tmp_path) as url:
        monkeypatch.setenv(request.param, url)
        assert not launch.is_local()
        check()
        yield request.param


def test_figures_of_a_cluster_equal_those_of_local_mode_row_by_row(
    parquet_only: Path, expected: Result, cluster: str
) -> None:
    job = JobReport()
    url = f"file://{parquet_only.parent}/results-{cluster}"
    found = launch.run_day(parquet_only, DAY, url, pulse=silent, job=job)
    assert (found.lines, found.malformed) == (expected.lines, expected.malformed)
    assert found.excluded == expected.excluded
    for name in launch.TABLES:
        assert rows_of(found, name) == rows_of(expected, name), name
        assert rows_of(found, name), name
    assert "Stage" not in job.output


def test_results_on_the_disks_of_a_cluster_are_not_taken_for_written(
    parquet_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    results = tmp_path / "results"
    results.mkdir()
    with servers.standalone(tmp_path, own_disk=results) as url:
        monkeypatch.setenv("SPARK_MASTER", url)
        with pytest.raises(launch.LaunchError, match="Set RESULTS_URL to a storage that all"):
            launch.run_day(parquet_only, DAY, f"file://{results}", pulse=silent)


def rows_of(result: Result, table: str) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in result.tables[table])
