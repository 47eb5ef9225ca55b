from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import make_broker, make_pair
from topology import latest
from topology.models import Broker, Topology


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    latest._latest.clear()
    yield
    latest._latest.clear()


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def pair(broker: Broker) -> Topology:
    return make_pair(broker, delay="15s")
