from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics import launch
from delayboard.demo.node import PrivateNode
from tests.real_broker.least_account import limit_account


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    """The folder of the test's own event log."""
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


@pytest.fixture
def least_account(broker_node: PrivateNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delayboard's account has the permissions that are exported for it."""
    limit_account(broker_node, monkeypatch)


@pytest.fixture
def start_spark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Call it before a job: those of all tests run in one Spark, which starts then."""
    return lambda: monkeypatch.setattr(launch, "run_module", request.getfixturevalue("warm"))
