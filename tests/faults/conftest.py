from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import SUITES
from tests.faults.nodes import mortal


@pytest.fixture(scope="session", params=SUITES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivateNode]:
    """Each test may kill it, and leaves it running."""
    with mortal(tmp_path_factory.mktemp("mortal"), request.param) as node:
        yield node
