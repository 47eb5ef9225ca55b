"""What the article of seed 002 promises, on real brokers: rounds, times, order, several queues."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.definitions import Binding, Queue
from topology.message import Publish
from topology.models import Broker, Topology
from topology.operations import provision
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_loop.form import parse
from topology.patterns.retry_loop.params import Params
from topology.patterns.retry_loop.pattern import RETRY_COUNT, retry_loop
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

PARKING = Queue("for people")
TTL = 0.4


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    return make_broker(vhost)


def loop(**values: str) -> Params:
    return parse({"name": "a", "delay": "400ms"} | values)


def applied(broker: Broker, params: Params) -> Topology:
    return applied_topology(create_topology(None, broker, retry_loop.KIND, params))


def send(
    vhost: Vhost,
    exchange: str,
    key: str = "",
    bodies: Iterable[bytes] = (b"{}",),
    headers: Mapping[str, Any] | None = None,
) -> float:
    """Publish; the moment before on the monotonic clock."""
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        for body in bodies:
            channel.publish(
                Publish(exchange, key, build_properties(headers, delivery_mode=2), body)
            )
    return before


def next_message(consumer: Consumer) -> tuple[Delivery, float]:
    got = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
    assert got, "nothing arrived"
    return got[0], time.monotonic()


def is_quiet(consumer: Consumer, seconds: float = 2 * TTL) -> bool:
    return not consumer.batch(limit=1, limit_bytes=10**6, wait=seconds, linger=0)


def failures(delivery: Delivery, params: Params) -> int:
    return read_history(delivery.message.headers).count(params.input_queue, "rejected")


def waited_in(delivery: Delivery, params: Params) -> set[timedelta]:
    """The times to live of the dead queues that it went through."""
    history = read_history(delivery.message.headers)
    return {one.delay for one in params.all_timeouts if history.count(one.queue, "expired")}


def attempts(vhost: Vhost, consumer: Consumer, params: Params, *, parks: bool) -> list[float]:
    """The moments at which a consumer after the article's sees one message, until it gives up."""
    seen: list[float] = []
    while True:
        delivery, at = next_message(consumer)
        if seen:
            assert len(waited_in(delivery, params)) == 1
        seen.append(at)
        if failures(delivery, params) < RETRY_COUNT:
            consumer.reject(delivery)
            continue
        if parks:
            send(vhost, "", PARKING.name, [delivery.message.body])
        consumer.ack(through=delivery.tag)
        return seen


@every_generation
@pytest.mark.parametrize("parks", [False, True], ids=["dropped", "parked"])
@pytest.mark.parametrize(
    "values",
    [{}, {"preset": "article"}, {"return_path": "separate"}],
    ids=["durable", "article", "separate"],
)
def test_a_message_that_always_fails_is_seen_three_times_a_delay_apart_and_then_given_up(
    vhost: Vhost, management: Management, broker: Broker, values: dict[str, str], parks: bool
) -> None:
    params = loop(**values)
    applied(broker, params)
    management.declare_queue(PARKING)
    with (
        Consumer(address_of(vhost), params.input_queue) as consumer,
        Consumer(address_of(vhost), PARKING.name) as people,
    ):
        send(vhost, params.input_exchange, bodies=[b"message from rmq"])
        seen = attempts(vhost, consumer, params, parks=parks)
        gaps = [later - sooner for sooner, later in pairwise(seen)]
        assert len(seen) == 3
        assert all(gap >= TTL for gap in gaps), gaps
        assert is_quiet(consumer)
        if parks:
            assert next_message(people)[0].message.body == b"message from rmq"
        assert is_quiet(people, 0.1)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"preset": "article"},
        {"preset": "article", "return_path": "separate"},
        {"split": "key", "timeouts": "mail.# 500ms, sms.* 700ms"},
        {"split": "header", "header": "kind", "timeouts": "slow 600ms", "return_path": "separate"},
        {"split": "header", "header": "kind", "timeouts": "slow 600ms", "unmatched": "lost"},
    ],
    ids=["durable", "article", "separate", "by key", "by header", "lossy"],
)
def test_a_variant_stands_as_declared_is_recognised_verifies_and_goes_away_whole(
    management: Management, broker: Broker, values: dict[str, str]
) -> None:
    params = loop(**values)
    topology = applied(broker, params)
    snapshot = observe(management)
    assert provision.plan_for(topology, snapshot).is_empty
    (use,) = retry_loop.recognize(snapshot.declared)
    assert (use.params, use.missing) == (params, ())
    assert use.claims == {obj.identity for obj in retry_loop.definitions(params)}
    verdict = provision.check(None, topology)
    assert verdict.holds, [check.sentence for check in verdict.checks if not check.holds]
    provision.remove(None, topology)
    left = observe(management).declared
    assert not left.queues
    assert not [x for x in left.exchanges if x.name and not x.name.startswith("amq.")]


def test_what_fails_together_comes_back_in_its_order(vhost: Vhost, broker: Broker) -> None:
    params = loop()
    applied(broker, params)
    bodies = [b"%d" % number for number in range(20)]
    with Consumer(address_of(vhost), params.input_queue) as consumer:
        send(vhost, params.input_exchange, bodies=bodies)
        for _ in range(2):
            deliveries = [next_message(consumer)[0] for _ in bodies]
            assert [delivery.message.body for delivery in deliveries] == bodies
            for delivery in deliveries:
                consumer.reject(delivery)


def test_without_a_separate_return_the_other_queue_gets_the_message_again(
    vhost: Vhost, management: Management, broker: Broker
) -> None:
    params = loop()
    applied(broker, params)
    management.declare_queue(Queue("another"))
    management.bind(Binding(params.input_exchange, "another", ""))
    with (
        Consumer(address_of(vhost), params.input_queue) as failing,
        Consumer(address_of(vhost), "another") as other,
    ):
        send(vhost, params.input_exchange)
        other.ack(through=next_message(other)[0].tag)
        failing.reject(next_message(failing)[0])
        failing.ack(through=next_message(failing)[0].tag)
        delivery, _ = next_message(other)
        assert failures(delivery, params) == 1
        other.ack(through=delivery.tag)


def test_with_separate_returns_only_the_queue_that_failed_gets_it_again(
    vhost: Vhost, broker: Broker
) -> None:
    shared = {"input_exchange": "in", "return_path": "separate"}
    both = [loop(**shared), loop(name="b", **shared)]
    for params in both:
        applied(broker, params)
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(Consumer(address_of(vhost), params.input_queue)) for params in both
        )
        for params, failing, other in zip(both, (a, b), (b, a), strict=True):
            send(vhost, "in")
            other.ack(through=next_message(other)[0].tag)
            first, rejected = next_message(failing)
            failing.reject(first)
            delivery, again = next_message(failing)
            assert again - rejected >= TTL
            assert waited_in(delivery, params) == {timedelta(seconds=TTL)}
            failing.ack(through=delivery.tag)
            assert is_quiet(other, TTL)


def test_with_a_shared_dead_exchange_what_b_rejects_goes_to_a_and_that_is_told(
    vhost: Vhost, management: Management, broker: Broker
) -> None:
    shared = {"input_exchange": "in", "return_path": "separate", "dead_exchange": "dead"}
    a, b = loop(**shared), loop(name="b", **shared)
    applied(broker, a)
    applied(broker, b)
    said = retry_loop.remarks(a, observe(management).definitions)
    assert any("Messages that “b_input_q” rejects" in sentence for sentence in said)
    with (
        Consumer(address_of(vhost), a.input_queue) as of_a,
        Consumer(address_of(vhost), b.input_queue) as of_b,
    ):
        send(vhost, "in")
        of_a.ack(through=next_message(of_a)[0].tag)
        of_b.reject(next_message(of_b)[0])
        delivery, _ = next_message(of_a)
        assert failures(delivery, b) == 1
        of_a.ack(through=delivery.tag)


BY_KEY = loop(split="key", timeouts="mail.# 300ms, sms.* 800ms", delay="550ms")
BY_HEADER = loop(split="header", header="kind", timeouts="fast 300ms, slow 800ms", delay="550ms")


@pytest.mark.parametrize(
    ("params", "messages"),
    [
        (BY_KEY, {"mail.a.b": 0.3, "sms.a": 0.8, "sms": 0.55, "": 0.55}),
        (BY_HEADER, {"fast": 0.3, "slow": 0.8, "other": 0.55}),
    ],
    ids=["key", "header"],
)
def test_each_message_waits_for_its_own_timeout_in_every_round_and_none_is_lost(
    vhost: Vhost, broker: Broker, params: Params, messages: dict[str, float]
) -> None:
    """The key and the headers are kept through the loop; taps stand beside."""
    applied(broker, params)
    with Consumer(address_of(vhost), params.input_queue) as consumer:
        for name in messages:
            is_key = params is BY_KEY
            headers = None if is_key else {"kind": name}
            send(vhost, params.input_exchange, name if is_key else "", [name.encode()], headers)
        rejected: dict[str, float] = {}
        for _ in range(3 * len(messages)):
            delivery, at = next_message(consumer)
            name = delivery.message.body.decode()
            if name in rejected:
                assert at - rejected[name] >= messages[name], name
                assert waited_in(delivery, params) == {timedelta(seconds=messages[name])}
            if failures(delivery, params) < RETRY_COUNT:
                rejected[name] = time.monotonic()
                consumer.reject(delivery)
        assert is_quiet(consumer)


def test_a_message_that_matches_no_timeout_is_lost_where_no_queue_is_for_it(
    vhost: Vhost, broker: Broker
) -> None:
    params = loop(split="key", timeouts="mail.# 300ms", unmatched="lost")
    applied(broker, params)
    with Consumer(address_of(vhost), params.input_queue) as consumer:
        send(vhost, params.input_exchange, "sms")
        consumer.reject(next_message(consumer)[0])
        send(vhost, params.input_exchange, "mail")
        consumer.reject(next_message(consumer)[0])
        delivery, _ = next_message(consumer)
        assert delivery.message.routing_key == "mail"
        assert is_quiet(consumer)


@pytest.mark.parametrize("params", [loop(), BY_KEY, BY_HEADER], ids=["one", "key", "header"])
def test_a_delayed_publish_arrives_after_each_delay_on_offer_and_never_before(
    vhost: Vhost, broker: Broker, params: Params
) -> None:
    applied(broker, params)
    with Consumer(address_of(vhost), params.input_queue) as consumer:
        for delay in (timedelta(0), *retry_loop.delays(params)):
            route = retry_loop.route(params, delay, params.input_queue)
            sent = send(vhost, route.exchange, route.routing_key, headers=route.headers)
            delivery, arrived = next_message(consumer)
            assert arrived - sent >= delay.total_seconds()
            assert waited_in(delivery, params) == {delay} - {timedelta(0)}
            consumer.ack(through=delivery.tag)


@pytest.mark.parametrize(
    ("params", "key", "delay"),
    [
        (loop(return_path="separate"), "", 0.4),
        (BY_KEY, "mail", 0.3),
        (BY_KEY, "other", 0.55),
        (BY_HEADER, "", 0.55),
    ],
    ids=["separate", "key", "no such key", "no such header"],
)
def test_the_tap_tells_each_round_with_its_number_and_its_delay(
    vhost: Vhost, broker: Broker, params: Params, key: str, delay: float
) -> None:
    """What took the alternate exchange too, whose copies have the name of the dead exchange."""
    topology = applied(broker, params)
    with Consumer(address_of(vhost), params.input_queue) as consumer:
        send(vhost, params.input_exchange, key)
        attempts(vhost, consumer, params, parks=False)
    with Consumer(address_of(vhost), topology.tap_queue) as tap:
        copies = [next_message(tap)[0].message for _ in range(5)]
        assert is_quiet(tap, 0.3)
    readings = [
        retry_loop.read(params, Copy(copy.exchange, copy.routing_key, copy.headers))
        for copy in copies
    ]
    waited = timedelta(seconds=delay)
    assert [(reading.phase, reading.attempt, reading.delay) for reading in readings if reading] == [
        ("publish", 0, timedelta(0)),
        ("entry", 1, waited),
        ("exit", 1, waited),
        ("entry", 2, waited),
        ("exit", 2, waited),
    ]


def test_a_foreign_consumer_that_declares_the_article_again_agrees_with_what_stands(
    vhost: Vhost, management: Management, broker: Broker
) -> None:
    """Its code declares at every start, with pika's own binding keys."""
    topology = applied(broker, loop(preset="article"))
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(retry_loop.definitions(loop(preset="article")))

    def stands() -> bool:
        return provision.plan_for(topology, observe(management)).is_empty

    eventually(stands, "nothing was added or changed")
