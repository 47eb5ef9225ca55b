"""The whole soak, for half a minute, and one that is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import eventually
from tests.faults.processes import ROOT
from tests.soak.meters import descendants

pytestmark = pytest.mark.long


def started(folder: Path, minutes: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak", "--minutes", f"{minutes}", "--folder", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_half_a_minute_holds_and_accounts_for_every_message(tmp_path: Path) -> None:
    with started(tmp_path, 0.5) as soak:
        said, _ = soak.communicate(timeout=240)
    assert soak.returncode == 0, said
    assert "It held" in said
    (folder,) = tmp_path.iterdir()
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3
    assert samples[-1]["values"]["site.memory"] > 10
    assert not (folder / "installation").exists()


def test_an_interrupted_soak_stops_everything_and_says_so(tmp_path: Path) -> None:
    with started(tmp_path, 60) as soak:
        eventually(lambda: list(tmp_path.glob("*/samples.jsonl")), "it samples", seconds=120)
        family = [soak.pid, *descendants(soak.pid)]
        soak.send_signal(signal.SIGINT)
        said, _ = soak.communicate(timeout=120)
    assert soak.returncode == 1
    assert "it was interrupted" in said
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
    assert os.getpid() not in family
