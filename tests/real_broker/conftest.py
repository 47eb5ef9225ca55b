from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics import launch
from delayboard.demo.node import PrivateNode
from tests.brokers import call_api
from tests.real_broker.least_account import limit_account


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    """The folder of the test's own event log."""
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


@pytest.fixture
def accounts_go(broker_node: PrivateNode) -> Iterator[None]:
    """Other tests use the same node, and look who may enter it."""
    yield
    for user in call_api(broker_node, "GET", "users"):
        if user["name"] != broker_node.username:
            call_api(broker_node, "DELETE", f"users/{user['name']}")


@pytest.fixture
def least_account(
    broker_node: PrivateNode, accounts_go: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayboard's account has the permissions that are exported for it."""
    limit_account(broker_node, monkeypatch)


@pytest.fixture
def start_spark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Call it before a job: those of all tests run in one Spark, which starts then."""
    return lambda: monkeypatch.setattr(launch, "run_module", request.getfixturevalue("warm"))
