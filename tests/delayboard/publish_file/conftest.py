from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import time_machine
from pytest_django import Settings

from delayboard.publishing import publish_job
from tests.delayboard.publish_file.lines import LEVELS, Channel
from tests.topology.builders import NOON
from topology import snapshots
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.pattern import delay_levels


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    kept = Channel()

    @contextmanager
    def pipeline(*args: Any, **kwargs: Any) -> Iterator[Channel]:
        yield kept

    monkeypatch.setattr(publish_job, "pipeline", pipeline)
    monkeypatch.setattr(snapshots, "for_action", lambda broker, management, objects: kept.seen)
    return kept


@pytest.fixture
def levels(broker: Broker, settings: Settings, tmp_path: Path) -> Topology:
    settings.VAR = tmp_path
    topology = create_topology(None, broker, delay_levels.KIND, LEVELS)
    topology.state = State.APPLIED
    topology.save()
    return topology


@pytest.fixture
def noon() -> Iterator[None]:
    with time_machine.travel(NOON, tick=False):
        yield
