"""A consumer that gets nothing: RabbitMQ keeps its connection, and a dead node ends it."""

from __future__ import annotations

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually
from tests.faults.freezing import frozen
from tests.publishing import publisher
from tests.stopwatch import stopwatch
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import heard_at
from topology.broker.errors import Unreachable
from topology.definitions import Definitions, Queue
from topology.message import Publish

# RabbitMQ sends one in the middle and one at the end of each.
HEARTBEAT_SECONDS = 2
NOTICED_WITHIN_SECONDS = 10.0


@pytest.fixture
def address(vhost: Vhost) -> Address:
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(Definitions.of([Queue("q")]))
    return address_of(vhost)


@pytest.mark.long
@every_generation
def test_a_consumer_without_messages_keeps_its_connection_by_answering_heartbeats(
    address: Address,
) -> None:
    """RabbitMQ cuts a connection that sends nothing for two or three heartbeats; this is five."""
    with Consumer(address, "q", heartbeat=HEARTBEAT_SECONDS) as consumer:
        heard: set[float] = set()

        def is_kept() -> bool:
            heard.add(heard_at(consumer.connection))
            return len(heard) > 10

        eventually(is_kept, "RabbitMQ sent heartbeats for longer", seconds=60)
        with publisher(address, "test") as channel:
            channel.publish(Publish("", "q", body=b"x"))
        (delivery,) = consumer.batch(limit=1, wait=10)
        assert delivery.body == b"x"


@pytest.mark.long
@every_generation
def test_a_node_that_is_stopped_ends_the_connection_of_a_consumer(
    address: Address, broker_node: PrivateNode
) -> None:
    with Consumer(address, "q", heartbeat=HEARTBEAT_SECONDS) as consumer, frozen(broker_node):
        with stopwatch() as watch, pytest.raises(Unreachable, match="does not answer"):
            eventually(lambda: consumer.batch(limit=1, wait=0.5), "the consumer ends", seconds=60)
        assert watch.seconds < NOTICED_WITHIN_SECONDS
