"""What is on the way when the broker takes nothing more: a sentence, and nothing is said done."""

from __future__ import annotations

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost
from tests.builders import address_of
from tests.faults.alarms import alarmed
from tests.faults.freezing import frozen
from tests.topology.numbers import Numbers
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import Blocked, Unreachable
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.message import Publish
from topology.transfer.move import move


@pytest.fixture
def queue(vhost: Vhost) -> str:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("q"))
    return "q"


def test_a_broker_that_freezes_ends_it_with_a_sentence(
    vhost: Vhost, newest_node: PrivateNode, queue: str
) -> None:
    with pipeline(address_of(vhost), "test") as wire:
        wire.publish(Publish("", queue), 0)
        while wire.in_flight:
            wire.answers(1.0)
        source = Numbers(100)
        with frozen(newest_node), pytest.raises(Unreachable, match="does not answer"):
            move(source, wire, window=10, is_stopping=lambda: False)
    assert source.settled == []


def test_an_alarm_ends_it_with_a_sentence(
    vhost: Vhost, newest_node: PrivateNode, queue: str
) -> None:
    source = Numbers(100)
    with (
        pipeline(address_of(vhost), "test") as wire,
        alarmed(newest_node, "memory"),
        pytest.raises(Blocked, match="has an alarm"),
    ):
        move(source, wire, window=10, is_stopping=lambda: False)
    assert source.settled == []
