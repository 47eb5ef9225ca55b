"""The alert rules of docs/monitoring, tried by Prometheus' own tool from Debian's package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prometheus")
    subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr/bin/promtool"


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_the_rules_report_what_they_should(promtool: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *words], cwd=RULES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout + done.stderr
