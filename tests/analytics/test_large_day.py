"""A day of ten million events: its figures are those of DuckDB, in less than 4 GB of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from analytics import launch
from analytics.launch import JobReport
from tests.analytics.builders import results_in
from tests.bench.event_day import DAY, write_day
from tests.bench.nightly import COLUMNS, by_duckdb, compare, picked

pytestmark = pytest.mark.long

EVENTS = int(os.environ.get("BENCH_EVENTS", "10000000"))
MOST_MEMORY_BYTES = 4 * 10**9


def test_figures_of_ten_million_events_are_those_of_duckdb(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = write_day(log, EVENTS)
    job = JobReport()
    found = launch.run_day(log, DAY, results_in(log), pulse=lambda *_: None, job=job)
    assert found.lines > 0.9 * lines
    expected = by_duckdb(log)
    assert all(expected.values())
    compare({name: picked(name, found.tables[name]) for name in COLUMNS}, expected)
    assert job.peak_memory_bytes is not None
    assert job.peak_memory_bytes < MOST_MEMORY_BYTES
