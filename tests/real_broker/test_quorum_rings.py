"""Patterns with quorum queues: declared as planned, and no message ends in a ring."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.brokers import NEWEST, Vhost
from tests.builders import address_of, applied_topology, make_broker
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.message import Publish
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait import params as busy_wait
from topology.patterns.delay_queues import params as delay_queues
from topology.patterns.retry_ladder import params as retry_ladder
from topology.patterns.retry_loop import form as retry_loop
from topology.patterns.retry_pair import params as retry_pair
from topology.patterns.table import PATTERNS

pytestmark = pytest.mark.django_db
quorum_generations = pytest.mark.generations("4.0", NEWEST, only=True)
MILLISECONDS = timedelta(milliseconds=1)
# More than the delivery limit that RabbitMQ 4 gives a quorum queue that states none.
CRASHES = 25
EXAMPLES: dict[str, Any] = {
    retry_pair.KIND: retry_pair.Params("orders", 300 * MILLISECONDS, queue_type="quorum"),
    retry_ladder.KIND: retry_ladder.Params("orders", (300 * MILLISECONDS,), queue_type="quorum"),
    busy_wait.KIND: busy_wait.Params("orders", (300 * MILLISECONDS,), queue_type="quorum"),
    delay_queues.KIND: delay_queues.Params("orders", (timedelta(seconds=1),), "quorum"),
    "retry_loop": retry_loop.parse({"name": "orders", "preset": "quorum", "delay": "300ms"}),
}


@quorum_generations
@pytest.mark.parametrize("kind", EXAMPLES)
def test_it_is_declared_with_quorum_queues_in_sync_and_recognized(vhost: Vhost, kind: str) -> None:
    params = EXAMPLES[kind]
    applied_topology(create_topology(None, make_broker(vhost), kind, params))
    with Management(address_of(vhost)) as management:
        found = observe(management).definitions
    own = PATTERNS[kind].definitions(params).queues
    declared = [queue for one in own if (queue := found.queue(one.name))]
    assert [queue.type for queue in declared] == ["quorum"] * len(own)
    assert params in [use.params for use in PATTERNS[kind].recognize(found)]


@quorum_generations
def test_a_message_that_fails_and_crashes_its_consumer_again_and_again_stays_in_the_ring(
    vhost: Vhost,
) -> None:
    """The default delivery limit would dead-letter it, and the second round would drop it."""
    params = EXAMPLES[retry_pair.KIND]
    applied_topology(create_topology(None, make_broker(vhost), retry_pair.KIND, params))
    address = address_of(vhost)
    with publisher(address, "test") as channel:
        channel.publish(Publish("orders", "orders", build_properties(delivery_mode=2), b"{}"))
    for _ in range(CRASHES):
        with Consumer(address, "orders") as consumer:
            assert _next(consumer).message.body == b"{}"
    with Consumer(address, "orders") as consumer:
        for _ in range(2):
            consumer.reject(_next(consumer))
        last = _next(consumer)
        assert read_history(last.message.headers).count("orders", "rejected") == 2
        consumer.ack(through=last.tag)


def _next(consumer: Consumer) -> Delivery:
    (found,) = consumer.batch(limit=1, limit_bytes=1_000_000, wait=60, linger=0)
    return found
