from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topology.models import Broker, Topology


@pytest.fixture
def broker(db: None) -> Broker:
    return Broker.objects.create(
        slug="main",
        name="Main",
        amqp_addresses="127.0.0.1",
        management_urls="http://127.0.0.1:15672",
    )


@pytest.fixture
def topology(broker: Broker) -> Topology:
    return Topology.objects.create(
        broker=broker,
        slug="orders",
        kind="retry_pair",
        name="orders",
        params={"name": "orders", "delay": "5s", "routing_key": "orders"},
    )


@pytest.fixture
def event_log(tmp_path: Path, settings: Any) -> Path:
    folder = tmp_path / "log"
    settings.EVENT_LOG = folder
    return folder
