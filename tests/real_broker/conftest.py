"""Tests against real brokers: each that asks for `broker_node` or `vhost` runs on every one."""

from __future__ import annotations

import pytest

from tests.brokers import SUITES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test once for each generation of RabbitMQ."""
    if "broker_node" in metafunc.fixturenames:
        metafunc.parametrize("broker_node", SUITES, indirect=True, scope="session")
