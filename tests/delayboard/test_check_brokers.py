"""The worker's check of findings."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from delayboard.worker.check_brokers import BrokerCheck, keep_checking_brokers
from tests.topology.builders import a_queue, a_snapshot
from topology import latest
from topology.definitions import Definitions, Thing
from topology.latest import Latest
from topology.models import Broker, Drift, FindingPeriod, Topology

LOST = a_queue("lost", dlx="not-there")


def answer(monkeypatch: pytest.MonkeyPatch, *things: Thing, error: str = "") -> None:
    snapshot = a_snapshot(Definitions.of(things))
    known = Latest(snapshot, datetime.now(UTC), error)
    monkeypatch.setattr(latest, "fresh_all", lambda brokers, age: [known for _ in brokers])


def test_the_worker_records_what_appears_and_goes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, LOST)
    stop = threading.Event()
    beats: list[object] = []

    def beat(details: object) -> None:
        beats.append(details)
        stop.set()

    keep_checking_brokers(stop, beat)
    assert beats[-1] == {"findings": 1, "drifted": 0}
    assert FindingPeriod.objects.get().resolved_at is None
    answer(monkeypatch)
    BrokerCheck().run(lambda details: None)
    assert FindingPeriod.objects.get().resolved_at is not None


def test_a_broker_that_does_not_answer_changes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = BrokerCheck()
    answer(monkeypatch, LOST)
    check.run(lambda details: None)
    answer(monkeypatch, error="It does not answer.")
    check.run(lambda details: None)
    assert FindingPeriod.objects.get().resolved_at is None


def test_without_a_change_only_the_time_is_written_once_a_minute(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[datetime] = []
    monkeypatch.setattr(
        "delayboard.worker.check_brokers.record_findings",
        lambda broker, found, at: written.append(at),
    )
    check = BrokerCheck()
    start = datetime.now(UTC)
    for second in (0, 10, 59, 60, 70):
        at = start + timedelta(seconds=second)
        known = Latest(replace(a_snapshot(Definitions.of([LOST])), taken_at=at), at)
        monkeypatch.setattr(latest, "fresh_all", lambda brokers, age, known=known: [known])
        check.run(lambda details: None)
    assert written == [start, start + timedelta(seconds=60)]


def test_the_worker_records_topologies_that_differ(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, LOST)
    details: list[object] = []
    BrokerCheck().run(details.append)
    assert details[-1] == {"findings": 1, "drifted": 1}
    assert Drift.objects.get().topology == pair
