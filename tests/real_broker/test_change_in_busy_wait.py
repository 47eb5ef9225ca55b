"""Messages of a busy wait that are changed: the forwarder changes them, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from analytics.models import Fact, ScheduledMessage
from delayboard.changes import take
from delayboard.changes.request import request, undo
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from delayboard.worker import tasks
from tests.brokers import Vhost
from tests.builders import address_of, applied_topology, eventually, make_broker, running
from tests.publishing import publisher
from tests.real_broker.changing import consuming, states, store
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait.params import Params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.transfer.forwarder import ForwarderCounts

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
            stamped = route.make_headers(time.time_ns() // 1_000_000)
            properties = build_properties(stamped, message_id=name, delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"))
            message = Message(route.exchange, route.routing_key, properties, b"{}")
            rows[name] = store(topology, message, "work", WAIT)
    return rows


def test_the_forwarder_takes_out_the_cancelled_messages(vhost: Vhost, topology: Topology) -> None:
    rows = delay(topology, vhost, ("a", "b", "c", "d"))
    verdicts = request(None, [rows["b"], rows["c"]], ChangeKind.CANCEL)
    assert [verdict.problem for verdict in verdicts] == ["", ""]
    undo(None, ScheduledChange.objects.get(key="c"))
    with forwarding(topology, 3), consuming(vhost, ["work"]) as arrived:
        eventually(lambda: arrived.number == 3, "the others pass")
    assert sorted(arrived.ids("work")) == ["a", "c", "d"]
    assert states() == {"b": ChangeState.DONE, "c": ChangeState.UNDONE}


@contextmanager
def forwarding(topology: Topology, number: int) -> Iterator[None]:
    """The worker's task, until so many have passed."""
    passing = ForwarderCounts()

    def wait(stop: Event) -> None:
        tasks._wait(topology.pk, passing, stop=stop, beat=lambda counters: None)

    with running(wait):
        yield
        eventually(lambda: passing.passed == number, "all pass")


def test_the_forwarder_delivers_now_and_reschedules(vhost: Vhost, topology: Topology) -> None:
    """With a new due time in the header that others read too; one more change applies to it."""
    rows = delay(topology, vhost, ("a", "b", "c"))
    later = datetime.now(UTC) + timedelta(seconds=9)
    for name, kind, at in (
        ("a", ChangeKind.DELIVER_NOW, None),
        ("b", ChangeKind.RESCHEDULE, later),
    ):
        (verdict,) = request(None, [rows[name]], kind, at)
        assert verdict.problem == ""
        assert verdict.takes_effect_at is not None
        assert verdict.takes_effect_at - datetime.now(UTC) <= WORK.lap
    with forwarding(topology, 3), consuming(vhost, ["work"]) as arrived:
        eventually(lambda: arrived.number == 3, "all arrive")
    assert arrived.ids("work") == ["a", "c", "b"]
    assert rows["a"].due_at is not None
    assert arrived.at("work", "a") < rows["a"].due_at - timedelta(seconds=1)
    assert arrived.at("work", "b") >= later - timedelta(milliseconds=1)
    assert set(states().values()) == {ChangeState.DONE}
    left = ScheduledMessage.objects.exclude(left_at=None)
    assert set(left.values_list("key", flat=True)) == {"a", "b"}
    lines = "".join(Fact.objects.values_list("line", flat=True))
    assert lines.count('"kind":"published"') == 2


def test_a_change_that_a_kill_left_in_doubt_is_repeated_and_marked(
    vhost: Vhost, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the publish and before the ack: it comes again, and was perhaps delivered."""
    rows = delay(topology, vhost, ("a",))
    request(None, [rows["a"]], ChangeKind.DELIVER_NOW)

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "give_back", lambda self: None)
        patched.setattr(take, "finish", die)
        with pytest.raises(Killed):
            tasks._wait(topology.pk, ForwarderCounts(), stop=Event(), beat=lambda counters: None)
    with forwarding(topology, 1), consuming(vhost, ["work"]) as arrived:
        eventually(lambda: arrived.number == 2, "it comes again")
    assert arrived.doubled("work") == {"a": 1}
    change = ScheduledChange.objects.get()
    assert (change.state, change.may_be_duplicated) == (ChangeState.DONE, True)
