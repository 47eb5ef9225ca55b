"""A broker that is killed as soon as messages come into an intercept queue."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from delayboard.demo.node import PrivateNode
from tests.builders import address_of, eventually
from tests.faults.nodes import KINDS, vhost_of
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange
from topology.message import Publish
from topology.transfer import interception as objects
from topology.transfer.interception import SETTLE_SECONDS, Interception

MESSAGES = 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_right_after_an_interception_began_loses_no_message(
    node: PrivateNode, kind: str
) -> None:
    vhost = vhost_of(node, kind)
    own = Binding("delivery", "orders", "#")
    one = Interception("delayboard.intercept.new", (own,), kind, timedelta(minutes=10))
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("delivery", "topic"))
        management.bind(own)
        objects.begin(one, management, [one.taking_all], settle=lambda: time.sleep(SETTLE_SECONDS))
    with publisher(address_of(vhost), "test") as channel:
        for number in range(MESSAGES):
            properties = build_properties({}, delivery_mode=2)
            channel.publish(Publish("delivery", "orders", properties, str(number).encode()))
    node.kill()
    node.start()
    came: list[int] = []
    with Consumer(address_of(vhost), one.name, prefetch=MESSAGES, in_thread=False) as taking:

        def is_all() -> bool:
            came.extend(
                int(arrival.body) for arrival in taking.batch(limit=MESSAGES, wait=0.2, linger=0)
            )
            return len(came) == MESSAGES

        eventually(is_all, "all messages are still there")
    assert came == [*range(MESSAGES)]
