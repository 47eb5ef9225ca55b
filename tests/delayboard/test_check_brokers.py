"""The worker's check of findings."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from analytics.models import Probe
from delayboard.worker.check_brokers import BrokerCheck
from delayboard.worker.tasks import repeat
from tests.builders import make_tapped
from tests.topology.builders import a_queue, a_snapshot
from topology import snapshots
from topology.definitions import BrokerObject, Definitions
from topology.graph.live_values import snapshot_marks
from topology.models import Broker, Drift, FindingPeriod, State, Topology
from topology.operations.finding_rows import with_reports
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.params import level_name
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest

LOST = a_queue("lost", dlx="not-there")


def answer(monkeypatch: pytest.MonkeyPatch, *objects: BrokerObject, error: str = "") -> None:
    snapshot = a_snapshot(Definitions.of(objects))
    known = Latest(snapshot, datetime.now(UTC), error)
    monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, age: [known for _ in brokers])


def test_the_worker_records_what_appears_and_goes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, LOST)
    stop = threading.Event()
    beats: list[object] = []

    def beat(details: object) -> None:
        beats.append(details)
        stop.set()

    repeat(BrokerCheck().check, 5.0, stop=stop, beat=beat)
    assert beats[-1] == {"findings": 1, "drifted": 0}
    assert FindingPeriod.objects.get().resolved_at is None
    answer(monkeypatch)
    BrokerCheck().check(alive=lambda: None)
    assert FindingPeriod.objects.get().resolved_at is not None


def test_a_broker_that_does_not_answer_changes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = BrokerCheck()
    answer(monkeypatch, LOST)
    check.check(alive=lambda: None)
    answer(monkeypatch, error="It does not answer.")
    check.check(alive=lambda: None)
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
        monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, age, known=known: [known])
        check.check(alive=lambda: None)
    assert written == [start, start + timedelta(seconds=60)]


def test_a_broker_in_which_nothing_happens_is_polled_seldomer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[float] = []
    check = BrokerCheck()
    start = datetime.now(UTC)

    def look(second: int, messages: int = 0, error: str = "") -> None:
        at = start + timedelta(seconds=second)
        numbers = {"lost": QueueNumbers(messages=messages)}
        snapshot = replace(a_snapshot(Definitions.of([LOST]), numbers), taken_at=at)

        def fresh_all(brokers: list[Broker], age: timedelta) -> list[Latest]:
            ages.append(age.total_seconds())
            return [Latest(snapshot, at, error)]

        monkeypatch.setattr(snapshots, "fresh_all", fresh_all)
        with time_machine.travel(at, tick=False):
            check.check(alive=lambda: None)

    for second in (0, 15, 30, 31, 61):
        look(second)
    look(91, messages=1)
    look(101, messages=1)
    assert ages == [10, 10, 10, 30, 30, 30, 10]
    for second in (110, 125, 141, 171):
        look(second, error="It does not answer.")
    look(201)
    look(211)
    assert ages[7:] == [10, 10, 30, 30, 30, 10]


def test_the_worker_records_topologies_that_differ(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, LOST)
    assert BrokerCheck().check(alive=lambda: None) == {"findings": 1, "drifted": 1}
    assert Drift.objects.get().topology == pair


def test_a_probe_that_a_level_keeps_is_in_no_finding_and_no_mark(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = Levels("own", "shop", 5)
    made = make_tapped(broker, "delay_levels", levels)
    made.state = State.APPLIED
    made.save()
    last = level_name(levels, 1)
    sent_at = datetime.now(UTC) - timedelta(minutes=5)
    Probe.objects.create(
        topology=made,
        message_id="kept",
        delay=timedelta(seconds=6),
        created_at=sent_at,
        sent_at=sent_at,
    )

    def check(stuck: int) -> tuple[list[str], str]:
        """The findings of stuck messages, and the mark of the level on a page."""
        snapshot = a_snapshot(
            made.definitions, {last: QueueNumbers(messages=stuck, ready=0, unacked=0)}
        )
        earlier_at = snapshot.taken_at - timedelta(minutes=1)
        known = Latest(
            replace(snapshot, earlier=snapshot.numbers, earlier_at=earlier_at), datetime.now(UTC)
        )
        monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, age: [known for _ in brokers])
        BrokerCheck().check(alive=lambda: None)
        found = FindingPeriod.objects.filter(rule="L02", resolved_at=None)
        marks = snapshot_marks(with_reports(broker, known.snapshot or snapshot))
        return list(found.values_list("title", flat=True)), marks[f"queue/{last}"]

    assert check(stuck=1) == ([], "waiting")
    assert check(stuck=2)[1] == "stuck"
    Probe.objects.update(arrived_at=datetime.now(UTC))
    titles, mark = check(stuck=1)
    assert (len(titles), mark) == (1, "stuck")
