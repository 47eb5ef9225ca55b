from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from analytics import launch
from tests.analytics.builders import results_in

DAY = date(2026, 11, 20)


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def a_fake_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "JOBS", "tests.analytics.fake_job")


def is_running(pid: int) -> bool:
    """A zombie that nobody has reaped yet runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 seconds in vain"
        time.sleep(0.02)


def test_the_result_is_what_the_job_left_and_its_progress_is_passed_on(tmp_path: Path) -> None:
    seen = []
    result = launch.run_day(
        tmp_path, DAY, results_in(tmp_path), pulse=lambda done, total: seen.append((done, total))
    )
    assert (result.lines, result.malformed) == (7, 1)
    assert set(result.tables) == set(launch.TABLES)
    assert seen[-1] == (1, 2)


def test_what_a_killed_run_left_is_removed_and_nothing_stays(tmp_path: Path) -> None:
    scratch = tmp_path / "_nightly" / "2026-11-20"
    scratch.mkdir(parents=True)
    (scratch / "summary.json").write_text("torn")
    assert launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None).lines == 7
    assert not scratch.exists()


def test_a_log_without_room_to_work_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "_nightly").write_text("in the way")
    with pytest.raises(launch.LaunchError, match="cannot create the work folder"):
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None)


def test_a_failed_job_is_told_with_what_it_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JOB", "fail")
    with pytest.raises(launch.LaunchError, match=r"exit code 1: .*the disk is on fire"):
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None)


def test_a_day_without_data_is_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JOB", "no data")
    with pytest.raises(launch.NoData, match="Nothing was there"):
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=lambda *_: None)


def test_a_pulse_that_raises_ends_the_job_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_JOB", f"hang {pids}")

    def pulse(*_: int) -> None:
        if pids.exists() and pids.read_text():
            raise Stopped

    with pytest.raises(Stopped):
        launch.run_day(tmp_path, DAY, results_in(tmp_path), pulse=pulse)
    job, grandchild = map(int, pids.read_text().split())
    until(lambda: not is_running(job) and not is_running(grandchild))


def test_the_job_dies_with_its_parent_however_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_JOB", f"hang {pids}")
    code = (
        "from analytics import launch; "
        "launch.run_module('tests.analytics.fake_job', [], pulse=lambda *_: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=launch.ROOT)
    try:
        until(lambda: pids.exists() and pids.read_text() != "")
        job, grandchild = map(int, pids.read_text().split())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: not is_running(job))
    finally:
        parent.kill()
    os.kill(grandchild, signal.SIGKILL)


def test_a_job_whose_parent_is_gone_already_does_not_begin() -> None:
    orphan = subprocess.run(
        [sys.executable, "-m", "analytics.launch", "1", "tests.analytics.fake_job"],
        cwd=launch.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert orphan.returncode == 1
    assert "ended" in orphan.stderr
    assert orphan.stdout == ""
