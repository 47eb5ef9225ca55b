"""Where consumers give messages up, and when all of them are observed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from analytics.given_up import find_given_up
from analytics.models import Firehose, Gap
from tests.builders import make_broker, make_pair
from tests.topology.builders import PAIR, a_queue, a_snapshot
from topology import snapshots
from topology.broker.errors import Unreachable
from topology.definitions import BrokerObject, Definitions
from topology.models import Broker, State, Topology

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
DEAD = "orders.dlq"


@pytest.fixture
def orders() -> Topology:
    topology = make_pair(make_broker())
    Topology.objects.update(state=State.APPLIED)
    return topology


def given_up(monkeypatch: pytest.MonkeyPatch, *objects: BrokerObject) -> tuple[list[str], bool]:
    """The parking queues, and whether all that is given up is observed."""
    found = a_snapshot(Definitions.of([*PAIR, *objects]))
    monkeypatch.setattr(snapshots, "recent", lambda _: found)
    one = find_given_up(BEGIN, BEGIN + DAY)
    (parking,) = one.parking.values()
    return list(parking), bool(one.observed)


def test_without_a_parking_queue_nothing_is_known(
    orders: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given_up(monkeypatch, a_queue("other")) == ([], False)


def test_of_parameters_that_no_longer_read_nothing_is_known(
    orders: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topology.objects.update(params={"name": ""})
    assert given_up(monkeypatch, a_queue(DEAD)) == ([], False)


def test_an_empty_parking_queue_does_not_show_that_nothing_else_took_messages(
    orders: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given_up(monkeypatch, a_queue(DEAD)) == ([DEAD], False)


def test_the_firehose_shows_all_of_a_day_that_it_recorded_without_a_gap(
    orders: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = a_queue(DEAD)
    Firehose.objects.create(broker=orders.broker, read_at=BEGIN + DAY)
    Firehose.objects.update(switched_on_at=BEGIN + timedelta(hours=1))
    assert given_up(monkeypatch, dead) == ([DEAD], False)
    Firehose.objects.update(switched_on_at=BEGIN)
    assert given_up(monkeypatch, dead) == ([DEAD], True)
    gap = {"from_at": BEGIN - DAY, "until_at": BEGIN + timedelta(minutes=1), "why": "restart"}
    Gap.objects.create(topology=orders, **gap)
    assert given_up(monkeypatch, dead) == ([DEAD], False)


def test_a_broker_without_an_answer_shows_nothing(
    orders: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Broker) -> None:
        raise Unreachable("silent")

    monkeypatch.setattr(snapshots, "recent", fail)
    found = find_given_up(BEGIN, BEGIN + DAY)
    assert (found.parking, found.observed) == ({}, frozenset())
