"""The worker's check of destinations: which topologies, and what it forgets."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from django.utils import timezone

from analytics.scheduled import projection
from delayboard.worker import check_brokers
from delayboard.worker.check_brokers import BindingWatch
from delayboard.worker.tasks import repeat
from tests.analytics.builders import an_entry
from tests.builders import make_tapped
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.models import Broker, MissingBinding, State, Topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.snapshots import Latest

PARAMS = delay_levels_params.Params("own", "shop", 3)


@pytest.fixture
def levels(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Topology:
    made = make_tapped(broker, delay_levels.KIND, PARAMS)
    Topology.objects.filter(pk=made.pk).update(state=State.APPLIED)
    entry = an_entry(at=timezone.now(), destination="sales")
    projection.project(made, [entry])
    answer(monkeypatch)
    return made


def answer(monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
    snapshot = replace(a_snapshot(delay_levels.definitions(PARAMS)), taken_at=datetime.now(UTC))
    known = Latest(None if error else snapshot, timezone.now(), error)
    monkeypatch.setattr(snapshots, "fresh", lambda broker, age: known)


def test_each_look_updates_the_rows_and_beats(levels: Topology, pair: Topology) -> None:
    stop = threading.Event()
    beats: list[object] = []

    def beat(reported: object) -> None:
        beats.append(reported)
        stop.set()

    repeat(BindingWatch().check, check_brokers.CHECK_SECONDS, stop=stop, beat=beat)
    assert beats == [{"missing": 1, "stuck": 0, "waiting": 1}]
    (row,) = levels.missing_bindings.all()
    assert row.destination == "sales"


def test_a_broker_that_does_not_answer_changes_nothing(
    levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = BindingWatch()
    watch.check()
    answer(monkeypatch, error="It does not answer.")
    assert watch.check()["missing"] == 1


def test_rows_of_a_topology_that_is_no_longer_applied_go(levels: Topology) -> None:
    watch = BindingWatch()
    watch.check()
    Topology.objects.update(state=State.DELETED)
    assert watch.check()["missing"] == 0
    assert not MissingBinding.objects.exists()
    assert check_brokers.CHECK_SECONDS <= 5
