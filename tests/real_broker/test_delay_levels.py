"""Delay levels on real brokers: what they declare, when messages arrive, what holds them up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from delayboard.demo.node import PrivateNode
from delayboard.worker.check_brokers import BindingWatch
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_levels, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.retrying_soon import retrying_soon
from topology import snapshots
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange, Queue
from topology.message import Publish
from topology.models import AuditEntry, State, Topology
from topology.operations import provision
from topology.operations.destinations import Restored, destinations_of, restore_binding, unbind
from topology.operations.ownership import Refusal, own_declared
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import pattern as delay_levels_pattern
from topology.patterns.delay_levels.params import Params, level_name
from topology.patterns.delay_levels.pattern import delay_levels
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

UNIT = timedelta(milliseconds=50)
SHORT = Params("own", "shop", 5, UNIT)
WORK = Queue("work")


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_queue(WORK)
        yield session


def publish(vhost: Vhost, params: Params, delay: timedelta, target: str = "work") -> float:
    """Declare and publish; the moment before, on the monotonic clock."""
    route = delay_levels.route(params, delay, target)
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        properties = build_properties(delivery_mode=2)
        channel.publish_by(route, Publish(route.exchange, route.routing_key, properties, b"{}"))
    return before


def depth(management: Management, name: str) -> int:
    found: int = management.queue(name).get("messages", 0)
    return found


@pytest.mark.parametrize("preset", ["nsb-v1", "nsb-v2", "celery"])
def test_a_preset_stands_as_declared_verifies_and_goes_away_whole(
    vhost: Vhost, management: Management, preset: str
) -> None:
    topology = applied_levels(vhost, Params(preset))
    snapshot = observe(management)
    assert provision.plan_for(topology, snapshot).is_empty
    (use,) = delay_levels.recognize(snapshot.declared)
    assert use.params == Params(preset)
    verdict = provision.check(None, topology)
    assert verdict.holds, [check for check in verdict.checks if not check.holds]
    assert [check.sentence for check in verdict.checks[:2]] == [
        "A probe would arrive in a destination after 1s.",
        "A probe would arrive in a destination after 8y 186d 21h 24m 15s.",
    ]
    eventually(lambda: _remove(topology), "it can be torn down")
    left = observe(management).declared
    assert {queue.name for queue in left.queues} == {"work"}
    assert not [e for e in left.exchanges if e.name and not e.name.startswith("amq.")]


def _remove(topology: Topology) -> bool:
    """For seconds the broker does not say how much a fresh quorum queue holds."""
    try:
        provision.remove(None, topology)
    except Refusal:
        return False
    return True


@every_generation
def test_any_delay_arrives_after_its_steps_and_never_before(
    vhost: Vhost, management: Management
) -> None:
    for params in (SHORT, replace(SHORT, prefix="old", queue_type="classic")):
        applied_levels(vhost, params)
        with Consumer(address_of(vhost), "work") as consumer:
            for asked_ms in (0, 20, 50, 210, 1000, 1550):
                asked = timedelta(milliseconds=asked_ms)
                sent = publish(vhost, params, asked)
                (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
                took = time.monotonic() - sent
                consumer.ack(through=delivery.tag)
                assert took >= delay_levels.achievable(params, asked).total_seconds()
                assert took >= asked.total_seconds()


def test_messages_for_a_destination_that_was_unbound_are_stuck_until_it_is_bound_again(
    vhost: Vhost, broker_node: PrivateNode, management: Management
) -> None:
    """At least once: nothing is lost; NServiceBus.RabbitMQ #1407 tells of the other side of it.

    Nothing records these messages here, so that they are reported without a name.
    """
    params = replace(SHORT, unit=timedelta(seconds=1))
    with retrying_soon(broker_node):
        topology = applied_levels(vhost, params)
    for _ in range(3):
        publish(vhost, params, params.unit)
    unbind(None, topology, "#.work", "work", typed_name="work")
    watch = BindingWatch()

    def look() -> dict[str, object]:
        snapshots.forget(topology.broker_id)
        return watch.check()

    eventually(lambda: look()["stuck"] == 3, "the stuck messages are counted")
    (row,) = topology.missing_bindings.all()
    assert row.sentence.startswith("At least 3 messages are stuck in the delay levels since")
    assert [c.sentence for c in provision.check(None, topology).checks if not c.holds] == [
        row.sentence
    ]
    assert depth(management, "work") == 0
    restored = restore_binding(None, topology, "work")
    assert restored == Restored("work", 1, has_no_consumer=True)
    assert "They wait in “work”, which has no consumer." in restored.sentence
    eventually(lambda: depth(management, "work") == 3, "they arrive")
    eventually(lambda: look() == {"missing": 0, "stuck": 0, "waiting": 0}, "nothing is stuck")
    assert provision.check(None, topology).holds


def test_a_destination_that_does_not_exist_cannot_be_bound_again(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_levels(vhost, SHORT)
    before = observe(management).declared
    with pytest.raises(Refusal, match="has no queue and no exchange “gone”"):
        restore_binding(None, topology, "gone")
    assert observe(management).declared == before


def test_each_delayed_message_is_copied_once_wherever_it_is_published(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_levels(vhost, replace(SHORT, queue_type="classic"))
    params = replace(SHORT, queue_type="classic")
    highest = level_name(params, params.levels - 1)
    publish(vhost, params, 5 * UNIT)
    with publisher(address_of(vhost), "test") as channel:
        key = delay_levels_pattern.routing_key(params, 6 * UNIT, "work")
        channel.publish(Publish(highest, key, build_properties(), b"{}"))
    eventually(lambda: depth(management, "work") == 2, "both arrive")
    with Consumer(address_of(vhost), topology.tap_queue) as consumer:
        copies = [
            delivery.message
            for _ in range(4)
            for delivery in consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
        ]
        assert not consumer.batch(limit=1, limit_bytes=10**6, wait=0.3)
    readings = [
        delay_levels.read(params, Copy(copy.exchange, copy.routing_key, copy.headers))
        for copy in copies
    ]
    seen = Counter((reading.phase, reading.delay // UNIT) for reading in readings if reading)
    assert seen == {("entry", 5): 1, ("entry", 6): 1, ("exit", 5): 1, ("exit", 6): 1}


@every_generation
def test_the_tap_is_classic_on_every_version(vhost: Vhost, management: Management) -> None:
    topology = applied_levels(vhost, SHORT)
    snapshot = observe(management)
    tap = snapshot.declared.queue(topology.tap_queue)
    assert tap is not None
    assert (tap.type, topology.tap_type) == ("classic", "classic")


def test_a_destination_is_listed_counted_as_ours_and_refused_to_go_while_messages_wait(
    vhost: Vhost, management: Management
) -> None:
    params = replace(SHORT, unit=timedelta(milliseconds=500))
    topology = applied_levels(vhost, params)
    route = delay_levels.route(params, 31 * params.unit, "work")
    own_declared(topology, route.declares, observe(management).definitions)
    publish(vhost, params, 31 * params.unit)
    topology.refresh_from_db()
    (bound,) = destinations_of(topology, observe(management))
    assert bound == Binding("shop.delay-delivery", "work", "#.work")
    assert bound.identity in topology.owned_identities
    with pytest.raises(Refusal, match=r"messages wait|does not say"):
        unbind(None, topology, "#.work", "work")
    with pytest.raises(Refusal, match="nobody is not bound to this topology"):
        unbind(None, topology, "#.work", "nobody")
    eventually(lambda: depth(management, "work") == 1, "it arrives")

    def unbound() -> bool:
        try:
            unbind(None, topology, "#.work", "work")
        except Refusal:
            return False
        return True

    eventually(unbound, "it goes when nothing waits any more")
    assert destinations_of(topology, observe(management)) == []
    topology.refresh_from_db()
    assert bound.identity not in topology.owned_identities
    done = AuditEntry.objects.filter(action="destination unbound").first()
    assert done is not None
    assert (done.what, done.outcome) == ("work", "done")


def test_a_destination_that_does_not_exist_is_refused_before_anything_is_published(
    vhost: Vhost, management: Management
) -> None:
    applied_levels(vhost, SHORT)
    with pytest.raises(NotFound, match="nobody"):
        publish(vhost, SHORT, UNIT, "nobody")


def test_a_destination_can_be_an_exchange(vhost: Vhost, management: Management) -> None:
    params = replace(SHORT, destinations="exchanges")
    management.declare_exchange(Exchange("endpoint", "fanout"))
    management.bind(Binding("endpoint", "work", ""))
    applied_levels(vhost, params)
    publish(vhost, params, UNIT, "endpoint")
    eventually(lambda: depth(management, "work") == 1, "it arrives behind the exchange")


def test_a_destination_that_others_bound_keeps_the_set_from_being_torn_down(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_levels(vhost, SHORT)
    management.bind(Binding("shop.delay-delivery", "work", "#.work"))
    with pytest.raises(Refusal, match=r"The queue “work” is bound to the exchange “shop\.delay"):
        provision.remove(None, topology)
    topology.refresh_from_db()
    assert topology.state == State.APPLIED


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_teardown_right_after_a_publish_is_refused_and_every_message_still_arrives(
    vhost: Vhost, management: Management, queue_type: str
) -> None:
    """The statistics still say that nothing is in it."""
    params = Params("own", "slow", 3, timedelta(seconds=2), queue_type)
    topology = applied_levels(vhost, params)
    declares = delay_levels.route(params, params.maximum, "work").declares
    own_declared(topology, declares, observe(management).declared)
    for _ in range(3):
        publish(vhost, params, params.maximum)
    topology.refresh_from_db()
    before = observe(management).declared
    with pytest.raises(Refusal, match="The topology holds 3 messages"):
        provision.remove(None, topology)
    assert observe(management).declared == before
    eventually(lambda: depth(management, "work") == 3, "all three arrive")


def test_a_set_whose_destinations_are_exchanges_verifies_with_and_without_one(
    vhost: Vhost, management: Management
) -> None:
    params = replace(SHORT, destinations="exchanges")
    topology = applied_levels(vhost, params)
    assert provision.check(None, topology).holds
    management.declare_exchange(Exchange("endpoint", "fanout"))
    management.bind(Binding("shop.delay-delivery", "endpoint", "#.endpoint", False))
    lost = [check.sentence for check in provision.check(None, topology).checks if not check.holds]
    assert len(lost) == 2
    assert "would not arrive in endpoint" in lost[0]
    management.bind(Binding("endpoint", "work", ""))
    assert provision.check(None, topology).holds


def test_another_set_under_the_same_names_is_a_conflict_that_changes_nothing(
    vhost: Vhost, management: Management
) -> None:
    applied_levels(vhost, SHORT)
    broker = make_broker(vhost, name="Other")
    faster = replace(SHORT, unit=2 * UNIT)
    topology = create_topology(None, broker, delay_levels.KIND, faster)
    with pytest.raises(Refusal, match="Delayboard changed nothing"):
        provision.apply(None, topology)
    plan = provision.plan_for(topology, observe(management))
    (differences,) = {change.differences for change in plan.select("conflict")[:1]}
    assert [(d.name, d.wanted, d.found) for d in differences] == [("x-message-ttl", "100", "50")]


def test_many_destinations_get_their_own_messages_only(
    vhost: Vhost, management: Management
) -> None:
    names = ["sales", "billing", "🔥-unicode", "with.dots.in.name"]
    for name in names:
        management.declare_queue(Queue(name))
    applied_levels(vhost, SHORT)
    for number, name in enumerate(names, start=1):
        publish(vhost, SHORT, number * UNIT, name)
    for name in names:
        with getter(address_of(vhost), name) as queue:
            delivery = eventually(queue.get, f"{name} gets its message")
            assert delivery.message.routing_key.endswith(f".{name}")
            queue.ack([delivery.tag])
            assert queue.get() is None
    found = observe(management).definitions
    assert len(delay_levels.destinations(SHORT, found)) == len(names)
