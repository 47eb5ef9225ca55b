from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics import launch


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    """The folder of the test's own event log."""
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


@pytest.fixture
def start_spark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Call it before a job: those of all tests run in one Spark, which starts then."""
    return lambda: monkeypatch.setattr(launch, "run_module", request.getfixturevalue("warm"))
