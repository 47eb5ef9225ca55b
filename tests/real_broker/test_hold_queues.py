"""Hold queues on real brokers: delays, leases, collisions, what the tap sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import Conflict, NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.message import Publish
from topology.models import Topology
from topology.operations import provision
from topology.operations.ownership import Refusal, own_declared
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues.params import Params, queue_name
from topology.patterns.hold_queues.pattern import hold_queues
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

ORDERS = Params("orders", ("created",))


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_exchange(Exchange("orders", "topic"))
        session.declare_queue(Queue("work"))
        session.bind(Binding("orders", "work", "created"))
        yield session


def applied(vhost: Vhost, params: Params) -> Topology:
    broker = make_broker(vhost)
    return applied_topology(create_topology(None, broker, hold_queues.KIND, params))


def publish(vhost: Vhost, params: Params, delay: timedelta, key: str = "created") -> float:
    route = hold_queues.route(params, delay, key)
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        properties = build_properties(delivery_mode=2)
        channel.publish_by(route, Publish(route.exchange, route.routing_key, properties, b"{}"))
    return before


@every_generation
@pytest.mark.parametrize("asked_ms", [0, 1, 300, 700])
def test_a_held_message_arrives_after_its_delay_and_never_before(
    vhost: Vhost, management: Management, asked_ms: int
) -> None:
    asked = timedelta(milliseconds=asked_ms)
    with Consumer(address_of(vhost), "work") as consumer:
        sent = publish(vhost, ORDERS, asked)
        (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
        assert time.monotonic() - sent >= asked.total_seconds()
        assert (delivery.message.exchange, delivery.message.routing_key) == ("orders", "created")
        consumer.ack(through=delivery.tag)


def test_the_topology_declares_nothing_but_its_tap_and_verifies(
    vhost: Vhost, management: Management
) -> None:
    params = Params("orders", ("created",), (timedelta(seconds=5), timedelta(minutes=1)))
    before = observe(management).declared
    topology = applied(vhost, params)
    made = {obj.identity for obj in observe(management).declared} - {t.identity for t in before}
    assert made == {
        ("queue", topology.tap_queue),
        Binding("orders", topology.tap_queue, "created").identity,
    }
    verdict = provision.check(None, topology)
    assert verdict.holds
    assert [check.sentence for check in verdict.checks] == [
        "A probe would arrive in created after 5s.",
        "A probe would arrive in created after 1m.",
    ]


def test_what_comes_out_is_copied_and_read_with_its_delay(
    vhost: Vhost, management: Management
) -> None:
    topology = applied(vhost, ORDERS)
    publish(vhost, ORDERS, timedelta(milliseconds=200))
    with Consumer(address_of(vhost), topology.tap_queue) as consumer:
        (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
    message = delivery.message
    reading = hold_queues.read(ORDERS, Copy(message.exchange, message.routing_key, message.headers))
    assert reading is not None
    assert (reading.phase, reading.delay) == ("exit", timedelta(milliseconds=200))
    assert (reading.queue, reading.attempt) == ("delay.200.orders.created", 1)


def test_a_hold_queue_outlives_its_messages_and_a_declare_renews_its_lease(
    vhost: Vhost, management: Management
) -> None:
    """With "double" the queue of 900 ms goes after 1.8 s without a declare, never before."""
    params = Params("orders", ("created",), lease="double")
    delay = timedelta(milliseconds=900)
    name = queue_name(params, delay, "created")
    with Consumer(address_of(vhost), "work") as consumer:
        last = 0.0
        for _ in range(3):
            last = publish(vhost, params, delay)
            assert consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)

    def is_gone() -> bool:
        try:
            management.queue(name)
        except NotFound:
            return True
        assert time.monotonic() - last < 15
        return False

    eventually(is_gone, "the unused queue goes away by itself")
    assert time.monotonic() - last >= 1.8


def test_a_name_that_is_taken_is_refused_by_the_broker_and_nothing_is_published(
    vhost: Vhost, management: Management
) -> None:
    management.declare_exchange(Exchange("orders.created", "topic"))
    publish(vhost, Params("orders"), timedelta(seconds=60), "created.eu")
    theirs = Params("orders.created")
    with pytest.raises(Conflict, match="x-dead-letter-exchange"):
        publish(vhost, theirs, timedelta(seconds=60), "eu")
    found = observe(management).definitions
    assert (
        "delays messages to the exchange “orders” with key “created.eu”"
        in (hold_queues.remarks(theirs, found)[0])
    )


def test_a_hold_queue_that_we_declared_goes_with_the_topology_but_not_with_messages_in_it(
    vhost: Vhost, management: Management
) -> None:
    topology = applied(vhost, ORDERS)
    delay = timedelta(minutes=10)
    route = hold_queues.route(ORDERS, delay, "created")
    own_declared(topology, route.declares, observe(management).definitions)
    publish(vhost, ORDERS, delay)
    topology.refresh_from_db()
    (held,) = hold_queues.members(ORDERS, observe(management).definitions)
    eventually(lambda: management.queue(held.name).get("messages") == 1, "the broker counts it")
    with pytest.raises(Refusal, match="The topology holds 1 message "):
        provision.remove(None, topology)
    provision.remove(None, topology, typed_name=topology.name)
    left = observe(management).declared
    assert {queue.name for queue in left.queues} == {"work"}
    assert Definitions.of([Exchange("orders", "topic")]).exchanges <= left.exchanges


def test_a_namespace_of_an_exchange_that_does_not_exist_is_a_conflict(
    vhost: Vhost, management: Management
) -> None:
    with pytest.raises(Refusal, match="Delayboard changed nothing"):
        applied(vhost, Params("nowhere", ("k",)))
    assert {queue.name for queue in observe(management).declared.queues} == {"work"}


def test_the_default_exchange_serves_a_queue_by_its_name(
    vhost: Vhost, management: Management
) -> None:
    params = Params()
    topology = applied(vhost, params)
    assert not topology.has_tap
    sent = publish(vhost, params, timedelta(milliseconds=150), "work")
    eventually(lambda: management.queue("work").get("messages") == 1, "it arrives")
    assert time.monotonic() - sent >= 0.15
