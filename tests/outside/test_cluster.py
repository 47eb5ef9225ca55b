"""Clusters of three nodes, of which one dies, pauses or is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers import SUITES
from tests.builders import eventually
from tests.clusters import Cluster
from tests.faults.freezing import frozen

pytestmark = pytest.mark.long


@pytest.mark.parametrize("generation", SUITES)
def test_a_node_goes_and_comes_back(tmp_path: Path, generation: str) -> None:
    def left() -> bool:
        return cluster.running("one") == {"one", "three"}

    with Cluster(tmp_path / "cluster", generation) as cluster:
        cluster["two"].kill()
        eventually(left, "the others miss it")
        cluster.heal()
        with frozen(cluster["two"]):
            eventually(left, "the others take it for dead")
        cluster.heal()
        with cluster.cut_off("two"):
            eventually(left, "the others cannot reach it")
        cluster.heal()
