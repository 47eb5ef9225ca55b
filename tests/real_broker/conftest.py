from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    """The folder of the test's own event log."""
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"
