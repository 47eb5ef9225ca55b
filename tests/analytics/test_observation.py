from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from heapq import heapify, heapreplace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from analytics import observation
from analytics.models import Firehose, ScheduledMessage
from analytics.recorder import shared_rows
from analytics.recorder.record import IDLE_WAIT_SECONDS
from tests.builders import make_broker, make_pair
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
HOUR = timedelta(hours=1)


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def make_holds(broker: Broker, exchange: str) -> Topology:
    params = hold_queues_params.Params(exchange, ("orders",))
    made = create_topology(None, broker, hold_queues.KIND, params)
    Topology.objects.filter(pk=made.pk).update(state=State.APPLIED)
    return made


def test_taps_leave_the_rest_to_the_firehose(broker: Broker) -> None:
    pair = make_pair(broker)
    Topology.objects.filter(pk=pair.pk).update(state=State.APPLIED)
    tapped, untapped = make_holds(broker, "shop"), make_holds(broker, "")
    assert observation.untapped(pair) == frozenset()
    assert observation.untapped(tapped) == {"entry"}
    assert observation.untapped(untapped) == {"entry", "exit"}
    assert set(observation.on_the_firehose(broker)) == {tapped, untapped}
    assert observation.on_the_firehose(make_broker(name="Other")) == []


def test_with_a_firehose_nothing_is_unobserved(broker: Broker) -> None:
    holds = make_holds(broker, "")
    assert observation.unobserved() == [holds]
    row = Firehose.objects.create(broker=broker, switched_on_by="ada")
    assert observation.unobserved() == []
    at = row.switched_on_at
    assert observation.unobserved(since=at) == []
    assert observation.unobserved(since=at - HOUR) == [holds]


def test_what_was_due_unseen_counts_as_gone(broker: Broker) -> None:
    holds = make_holds(broker, "")
    now = datetime.now(UTC)
    of: dict[str, Any] = {"broker": broker, "topology": holds, "attempt": 1, "key": "k"}
    for due_at in (now - HOUR, now + HOUR):
        ScheduledMessage.objects.create(due_at=due_at, requested_delay=HOUR, **of)
    rows = ScheduledMessage.objects.order_by("due_at")
    first, second = rows
    assert list(rows.filter(observation.is_presumed_delivered(now))) == [first]
    later = now + 2 * HOUR
    assert list(rows.filter(observation.is_presumed_delivered(later))) == [first, second]
    Firehose.objects.create(broker=broker, switched_on_by="ada")
    assert list(rows.filter(observation.is_presumed_delivered(later))) == [first]


@pytest.mark.parametrize("recorders", [1, 2, 3, 10, 200])
def test_idle_recorders_of_a_worker_are_never_silent(
    monkeypatch: pytest.MonkeyPatch, recorders: int
) -> None:
    """Each marks after every wait and some milliseconds, whatever the others do in between."""
    now, known, oldest = 0.0, dict[int, datetime](), timedelta(0)

    def at(moment: float) -> datetime:
        return datetime.fromtimestamp(moment, UTC)

    class Rows:
        def filter(self, *, topology__in: Collection[int]) -> Rows:
            self.marked = list(topology__in)
            return self

        def update(self, *, read_at: datetime) -> None:
            nonlocal oldest
            oldest = max([oldest, *(at(now) - known[one] for one in self.marked if one in known)])
            known.update(dict.fromkeys(self.marked, read_at))

    monkeypatch.setattr(shared_rows, "Recording", SimpleNamespace(objects=Rows()))
    monkeypatch.setattr(shared_rows, "monotonic", lambda: now)
    monkeypatch.setattr(shared_rows, "datetime", SimpleNamespace(now=lambda _: at(now)))
    chance, shared = Random(7), shared_rows.SharedRows()
    wakes = [(chance.uniform(0, IDLE_WAIT_SECONDS), one) for one in range(recorders)]
    heapify(wakes)
    while now < 600:
        now, one = wakes[0]
        shared.mark_read(one)
        shared.write()
        heapreplace(wakes, (now + IDLE_WAIT_SECONDS + chance.uniform(0, 0.05), one))
    assert len(known) == recorders
    assert oldest < observation.SILENT_AFTER - timedelta(seconds=0.5)
