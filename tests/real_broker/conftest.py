"""Tests against real brokers: each that asks for `broker_node` or `vhost` runs on every one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from tests.brokers import SUITES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test once for each generation of RabbitMQ, or for those that a marker names."""
    if "broker_node" in metafunc.fixturenames:
        chosen = metafunc.definition.get_closest_marker("generations")
        names = chosen.args if chosen else tuple(SUITES)
        metafunc.parametrize("broker_node", names, indirect=True, scope="session")


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    """The folder of the test's own event log."""
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"
