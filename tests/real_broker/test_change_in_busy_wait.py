"""Messages of a busy wait that are cancelled: the forwarder takes them out, and no others."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event

import pytest

from analytics.models import ScheduledMessage
from delayboard.changes.check import ONLY_CANCEL
from delayboard.changes.request import request, undo
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from delayboard.worker import tasks
from tests.brokers import Vhost
from tests.builders import address_of, applied_topology, eventually, make_broker, running
from tests.real_broker.changing import consuming, states, store
from topology.broker.amqp.publisher import publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait.params import Params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.transfer.forwarder import Passing

pytestmark = pytest.mark.django_db(transaction=True)
WORK = Params("work", (timedelta(milliseconds=200),))
WAIT = timedelta(seconds=6)


@pytest.fixture
def topology(vhost: Vhost) -> Topology:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    return applied_topology(create_topology(None, make_broker(vhost), busy_wait.KIND, WORK))


def delay(topology: Topology, vhost: Vhost, names: tuple[str, ...]) -> dict[str, ScheduledMessage]:
    rows = {}
    with publisher(address_of(vhost), "test") as channel:
        for name in names:
            route = busy_wait.route(WORK, WAIT, "work")
            stamped = route.stamped(time.time_ns() // 1_000_000)
            properties = build_properties(stamped, message_id=name, delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"))
            message = Message(route.exchange, route.routing_key, properties, b"{}")
            rows[name] = store(topology, message, "work", WAIT)
    return rows


def test_the_forwarder_takes_out_the_cancelled_messages(vhost: Vhost, topology: Topology) -> None:
    rows = delay(topology, vhost, ("a", "b", "c", "d"))
    verdicts = request(None, [rows["b"], rows["c"]], ChangeKind.CANCEL)
    assert [verdict.problem for verdict in verdicts] == ["", ""]
    (refused,) = request(None, [rows["a"]], ChangeKind.DELIVER_NOW)
    assert refused.problem == ONLY_CANCEL
    undo(None, ScheduledChange.objects.get(key="c"))
    passing = Passing()

    def wait(stop: Event) -> None:
        tasks._wait(topology.pk, passing, stop=stop, beat=lambda counters: None)

    with consuming(vhost, ["work"]) as arrived, running(wait):
        eventually(lambda: passing.passed == 3, "the others pass")
    assert sorted(arrived.ids("work")) == ["a", "c", "d"]
    assert states() == {"b": ChangeState.DONE, "c": ChangeState.UNDONE}
