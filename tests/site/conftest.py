from __future__ import annotations

import pytest

from tests.builders import make_broker, make_pair
from topology.models import Broker, Topology


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def pair(broker: Broker) -> Topology:
    return make_pair(broker, delay="15s")
