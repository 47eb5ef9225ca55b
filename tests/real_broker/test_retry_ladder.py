"""What a retry ladder promises, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_topology, make_broker
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.definitions import Arguments, Definitions, Queue
from topology.message import Publish
from topology.models import Topology
from topology.operations import provision
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_ladder import params as retry_ladder_params
from topology.patterns.retry_ladder.params import rung_name
from topology.patterns.retry_ladder.pattern import retry_ladder
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

MS = timedelta(milliseconds=1)
PARAMS = retry_ladder_params.Params("orders", (200 * MS, 400 * MS, 600 * MS), "shop.order")
KEYS = ["shop.order", *(f"shop.order.try.{n}" for n in (1, 2, 3))]


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


@pytest.fixture
def ladder(vhost: Vhost) -> Topology:
    return applied_topology(create_topology(None, make_broker(vhost), retry_ladder.KIND, PARAMS))


def send(vhost: Vhost, exchange: str, key: str, body: bytes = b"{}") -> float:
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        channel.publish(Publish(exchange, key, build_properties(delivery_mode=2), body))
        return before


def send_by(vhost: Vhost, delay: timedelta, body: bytes = b"{}") -> float:
    way = retry_ladder.route(PARAMS, delay, "orders")
    return send(vhost, way.exchange, way.routing_key, body)


def next_of(consumer: Consumer, wait: float = 10) -> tuple[Delivery, float]:
    got = consumer.batch(limit=1, limit_bytes=10**6, wait=wait, linger=0)
    assert got, "nothing arrived"
    return got[0], time.monotonic()


def parked(vhost: Vhost, queue: str = "orders-parking") -> Delivery:
    with Consumer(address_of(vhost), queue) as consumer:
        return next_of(consumer)[0]


def counts(delivery: Delivery) -> dict[tuple[str, str], int]:
    deaths = read_history(delivery.message.headers).deaths
    return {(death.queue, death.reason): death.count for death in deaths}


@every_generation
def test_a_message_that_always_fails_comes_back_later_each_time_and_is_parked_once(
    vhost: Vhost, ladder: Topology, management: Management
) -> None:
    rejected = send(vhost, "orders", "shop.order")
    keys, gaps = [], []
    with Consumer(address_of(vhost), "orders") as consumer:
        for _ in KEYS:
            delivery, arrived = next_of(consumer)
            keys.append(delivery.message.routing_key)
            gaps.append(arrived - rejected)
            rejected = time.monotonic()
            consumer.reject(delivery)
        last = parked(vhost)
        assert not consumer.batch(limit=1, limit_bytes=10**6, wait=0.8)
    assert keys == KEYS
    for gap, delay in zip(gaps[1:], PARAMS.delays, strict=True):
        assert gap >= delay.total_seconds()
    rungs = {(rung_name(PARAMS, rung), "expired"): 1 for rung in PARAMS.rungs}
    assert counts(last) == {("orders", "rejected"): 4, **rungs}
    assert last.message.exchange == "orders-ladder"


def test_work_published_straight_into_the_queue_climbs_from_the_first_rung(
    vhost: Vhost, ladder: Topology
) -> None:
    send(vhost, "", "orders", b"past the exchange")
    keys = []
    with Consumer(address_of(vhost), "orders") as consumer:
        for _ in KEYS:
            delivery, _ = next_of(consumer)
            keys.append(delivery.message.routing_key)
            consumer.reject(delivery)
        last = parked(vhost)
    assert keys == ["orders", *KEYS[1:]]
    assert last.message.body == b"past the exchange"


@pytest.mark.parametrize("rung", PARAMS.rungs)
def test_a_delayed_publish_waits_on_its_rung_and_goes_on_from_there(
    vhost: Vhost, ladder: Topology, rung: int
) -> None:
    delay = PARAMS.delays[rung - 1]
    with Consumer(address_of(vhost), "orders") as consumer:
        sent = send_by(vhost, delay)
        for key in KEYS[rung:]:
            delivery, arrived = next_of(consumer)
            assert delivery.message.routing_key == key
            if key == KEYS[rung]:
                assert arrived - sent >= delay.total_seconds()
            consumer.reject(delivery)
    expected = {(rung_name(PARAMS, one), "expired"): 1 for one in PARAMS.rungs if one >= rung}
    assert counts(parked(vhost)) == {("orders", "rejected"): 4 - rung, **expected}


def test_a_short_retry_is_not_held_up_by_a_long_one_and_equals_keep_their_order(
    vhost: Vhost,
) -> None:
    short, long = 200 * MS, 6000 * MS
    params = retry_ladder_params.Params("orders", (short, long), "shop.order")
    topology = create_topology(None, make_broker(vhost), retry_ladder.KIND, params)
    provision.apply(None, topology)
    with Consumer(address_of(vhost), "orders") as consumer:
        with publisher(address_of(vhost), "test") as channel:
            for body in (b"long", b"first", b"second", b"third"):
                delay = long if body == b"long" else short
                way = retry_ladder.route(params, delay, "orders")
                channel.publish(Publish(way.exchange, way.routing_key, body=body))
        bodies = [next_of(consumer)[0].message.body for _ in range(4)]
    assert bodies == [b"first", b"second", b"third", b"long"]


def test_its_taps_tell_every_climb_once(vhost: Vhost, ladder: Topology) -> None:
    send(vhost, "", "orders")
    with Consumer(address_of(vhost), "orders") as consumer:
        for _ in KEYS:
            consumer.reject(next_of(consumer)[0])
    parked(vhost)
    with Consumer(address_of(vhost), ladder.tap_queue) as consumer:
        seen = [next_of(consumer)[0].message for _ in range(6)]
        assert not consumer.batch(limit=1, limit_bytes=10**6, wait=0.3)
    readings = [
        retry_ladder.read(PARAMS, Copy(one.exchange, one.routing_key, one.headers)) for one in seen
    ]
    reported = [(r.phase, r.delay // MS, r.attempt, r.death_queue) for r in readings if r]
    assert reported == [
        ("entry", 200, 1, "orders"),
        ("exit", 200, 1, "orders-rung-1"),
        ("entry", 400, 2, "orders"),
        ("exit", 400, 2, "orders-rung-2"),
        ("entry", 600, 3, "orders"),
        ("exit", 600, 3, "orders-rung-3"),
    ]


def test_a_ladder_beside_it_with_a_key_like_its_retries_gets_none_of_its_messages(
    vhost: Vhost, ladder: Topology
) -> None:
    beside = retry_ladder_params.Params("others", (200 * MS,), KEYS[1])
    other = create_topology(None, ladder.broker, retry_ladder.KIND, beside)
    provision.apply(None, other)
    send(vhost, "orders", KEYS[0], b"ours")
    send(vhost, "others", KEYS[1], b"theirs")
    address = address_of(vhost)
    with Consumer(address, "orders") as ours, Consumer(address, "others") as theirs:
        for consumer, body, times in ((theirs, b"theirs", 2), (ours, b"ours", 4)):
            for _ in range(times):
                delivery, _ = next_of(consumer)
                assert delivery.message.body == body
                consumer.reject(delivery)
        assert parked(vhost).message.body == b"ours"
        assert parked(vhost, "others-parking").message.body == b"theirs"


def test_a_rung_that_exists_with_another_delay_is_a_conflict_and_nothing_is_changed(
    vhost: Vhost, management: Management
) -> None:
    there = Queue("orders-rung-2", arguments=Arguments({"x-message-ttl": 9000}))
    management.declare_queue(there)
    topology = create_topology(None, make_broker(vhost), retry_ladder.KIND, PARAMS)
    with pytest.raises(Refusal, match="Delayboard changed nothing"):
        provision.apply(None, topology)
    assert _own(observe(management).declared) == {"orders-rung-2"}


def test_it_verifies_is_recognised_and_leaves_nothing_when_it_is_torn_down(
    vhost: Vhost, ladder: Topology, management: Management
) -> None:
    verdict = provision.check(None, ladder)
    assert verdict.holds, verdict
    assert [check.sentence for check in verdict.checks[:3]] == [
        "A probe would arrive in orders after 200ms.",
        "A probe would arrive in orders after 400ms.",
        "A probe would arrive in orders after 600ms.",
    ]
    snapshot = observe(management)
    assert provision.plan_for(ladder, snapshot).is_empty
    (use,) = retry_ladder.recognize(snapshot.definitions)
    assert (use.params, use.missing) == (PARAMS, ())
    provision.remove(None, ladder)
    assert not _own(observe(management).declared)


def _own(declared: Definitions) -> set[str]:
    exchanges = {e.name for e in declared.exchanges if e.name and not e.name.startswith("amq.")}
    return exchanges | {queue.name for queue in declared.queues}
