from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import SUITES
from tests.faults.nodes import mortal

# Each generation and each type of queue, and on PostgreSQL the other type of the newest.
TYPES = {"3.10": "classic", "4.0": "quorum", "4.3": "classic"}
ON_POSTGRES = {"4.3": "quorum"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the other types of queue of a generation to the full matrix."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    chosen = ON_POSTGRES if item.config.getoption("postgres") else TYPES
    kind = parameters.get("kind")
    generation = parameters.get("broker_node", parameters.get("node", ""))
    if kind and chosen.get(generation, kind) != kind:
        item.add_marker("long")


@pytest.fixture(scope="session", params=SUITES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivateNode]:
    """Each test may kill it, and leaves it running."""
    with mortal(tmp_path_factory.mktemp("mortal"), request.param) as node:
        yield node
