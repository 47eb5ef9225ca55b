from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from analytics import observation
from analytics.models import Firehose, ScheduledMessage
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
