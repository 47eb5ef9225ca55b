"""Delayed retries of a quorum queue: what RabbitMQ 4.3 does, and that older ones are left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.holding import foreign
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties, read_properties
from topology.deaths import read_history
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations import provision
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.quorum_retry import params as quorum_retry_params
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

MS = timedelta(milliseconds=1)
PARAMS = quorum_retry_params.Params("orders", "failed", 200 * MS, 500 * MS, 5)


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


def applied(
    vhost: Vhost, management: Management, params: quorum_retry_params.Params = PARAMS
) -> Topology | None:
    """None, and nothing changed, where the broker is too old for it."""
    topology = create_topology(None, make_broker(vhost), quorum_retry.KIND, params)
    before = observe(management)
    if before.version_tuple < (4, 3):
        reported = (
            f"RabbitMQ {before.version} does not delay retries .* Use a retry ladder"
            ".* Delayboard changed nothing"
        )
        with pytest.raises(Refusal, match=reported):
            provision.apply(None, topology)
        assert observe(management).declared == before.declared
        return None
    provision.apply(None, topology)
    topology.refresh_from_db()
    return topology


def send(vhost: Vhost, body: bytes = b"{}") -> float:
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        channel.publish(Publish("orders", "orders", build_properties(delivery_mode=2), body))
        return before


def deliveries(channel: Any, queue: str = "orders") -> Iterator[tuple[Any, Any, bytes, float]]:
    """Method, properties, body and time of each; fails when none comes for a minute."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=60):
        assert method is not None, "nothing arrived"
        yield method, properties, body, time.monotonic()


def parked(vhost: Vhost) -> Message:
    with Consumer(address_of(vhost), "orders-parking") as consumer:
        got = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
    assert got, "nothing was parked"
    return got[0].message


def gaps_of(vhost: Vhost, number: int, put_back: Callable[[Any, int], None]) -> list[timedelta]:
    """The times between the deliveries of one message that is put back so often."""
    gaps: list[timedelta] = []
    with foreign(vhost.amqp_url) as channel:
        returned = send(vhost)
        for method, _, _, arrived in deliveries(channel):
            gaps.append(timedelta(seconds=arrived - returned))
            returned = time.monotonic()
            put_back(channel, method.delivery_tag)
            if len(gaps) == number:
                break
        channel.cancel()
    return gaps[1:]


@every_generation
def test_what_fails_waits_longer_each_time_up_to_the_longest_and_is_parked_after_the_last_retry(
    vhost: Vhost, management: Management
) -> None:
    if applied(vhost, management) is None:
        return
    gaps = gaps_of(vhost, PARAMS.limit + 1, lambda channel, tag: channel.basic_reject(tag, True))
    # The shortest delay more each time, up to the longest (rabbit_fifo.erl 4.3.5,
    # calculate_ready_at; the documentation's example of a fourth step of 30 s is wrong).
    promised = [200 * MS, 400 * MS, 500 * MS, 500 * MS, 500 * MS]
    assert all(gap >= wait for gap, wait in zip(gaps, promised, strict=True)), gaps
    # Without an upper end each of these would be longer.
    assert any(gap < n * PARAMS.shortest for n, gap in enumerate(gaps, 1) if n > 2), gaps
    message = parked(vhost)
    deaths = read_history(message.headers).deaths
    assert [(d.queue, d.reason, d.count) for d in deaths] == [("orders", "delivery_limit", 1)]
    assert (message.exchange, message.routing_key) == ("", "orders-parking")


def test_a_consumer_that_is_lost_counts_as_a_failure(vhost: Vhost, management: Management) -> None:
    params = quorum_retry_params.Params("orders", "failed", 300 * MS, 300 * MS, 1)
    if applied(vhost, management, params) is None:
        return
    send(vhost)
    with foreign(vhost.amqp_url) as channel:
        *_, taken = next(deliveries(channel))
    with foreign(vhost.amqp_url) as channel:
        _, properties, _, arrived = next(deliveries(channel))
    assert read_properties(properties.raw).headers["x-delivery-count"] == 1
    assert arrived - taken >= 0.3
    assert read_history(parked(vhost).headers).count("orders", "delivery_limit") == 1


def test_a_nack_comes_back_at_once_where_only_failures_wait(
    vhost: Vhost, management: Management
) -> None:
    params = quorum_retry_params.Params("orders", "failed", 5000 * MS, 5000 * MS, 1)
    if applied(vhost, management, params) is None:
        return
    gaps = gaps_of(vhost, 4, lambda channel, tag: channel.basic_nack(tag))
    assert all(gap < params.shortest for gap in gaps)


@pytest.mark.parametrize("retry", ["returned", "all"])
def test_a_nack_waits_the_shortest_delay_and_is_never_counted(
    vhost: Vhost, management: Management, retry: str
) -> None:
    params = quorum_retry_params.Params("orders", retry, 300 * MS, 90_000 * MS, 1)
    if applied(vhost, management, params) is None:
        return
    gaps = gaps_of(vhost, 4, lambda channel, tag: channel.basic_nack(tag))
    assert all(gap >= params.shortest for gap in gaps)
    assert all(gap < 60 * params.shortest for gap in gaps)


def test_where_only_returns_wait_what_fails_comes_back_at_once_and_is_parked(
    vhost: Vhost, management: Management
) -> None:
    params = quorum_retry_params.Params("orders", "returned", 8000 * MS, 8000 * MS, 2)
    if applied(vhost, management, params) is None:
        return
    gaps = gaps_of(vhost, 3, lambda channel, tag: channel.basic_reject(tag, True))
    assert all(gap < params.shortest for gap in gaps)
    assert read_history(parked(vhost).headers).count("orders", "delivery_limit") == 1


def test_what_is_rejected_for_good_is_parked_at_once(vhost: Vhost, management: Management) -> None:
    if applied(vhost, management) is None:
        return
    send(vhost)
    with foreign(vhost.amqp_url) as channel:
        method, *_ = next(deliveries(channel))
        channel.basic_reject(method.delivery_tag, requeue=False)
        message = parked(vhost)
        channel.cancel()
    assert read_history(message.headers).count("orders", "rejected") == 1


def test_what_cannot_be_parked_is_kept(vhost: Vhost, management: Management) -> None:
    if applied(vhost, management) is None:
        return
    management.delete_queue("orders-parking", only_if_empty=False)
    send(vhost)
    with foreign(vhost.amqp_url) as channel:
        method, *_ = next(deliveries(channel))
        channel.basic_reject(method.delivery_tag, requeue=False)
        eventually(lambda: management.queue("orders").get("messages_dlx") == 1, "it is kept")
        channel.cancel()


def test_new_work_does_not_wait_behind_what_is_delayed(
    vhost: Vhost, management: Management
) -> None:
    params = quorum_retry_params.Params("orders", "failed", 5000 * MS, 5000 * MS, 5)
    if applied(vhost, management, params) is None:
        return
    bodies = []
    with foreign(vhost.amqp_url) as channel:
        send(vhost, b"fails once")
        for method, _, body, arrived in deliveries(channel):
            bodies.append(body)
            if len(bodies) == 1:
                failed = arrived
                channel.basic_reject(method.delivery_tag, requeue=True)
                send(vhost, b"later")
                continue
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == 3:
                break
        channel.cancel()
    assert bodies == [b"fails once", b"later", b"fails once"]
    assert arrived - failed >= 5.0


def test_its_tap_tells_the_first_arrival_and_no_retry(vhost: Vhost, management: Management) -> None:
    topology = applied(vhost, management)
    if topology is None:
        return
    gaps_of(vhost, 3, lambda channel, tag: channel.basic_reject(tag, True))
    with Consumer(address_of(vhost), topology.tap_queue) as consumer:
        (copy,) = consumer.batch(limit=5, limit_bytes=10**6, wait=60, linger=0.5)
    message = copy.message
    reading = quorum_retry.read(PARAMS, Copy(message.exchange, message.routing_key, {}))
    assert reading is not None
    assert (reading.phase, reading.destination) == ("publish", "orders")


def test_it_verifies_is_recognised_and_leaves_nothing_when_it_is_torn_down(
    vhost: Vhost, management: Management
) -> None:
    topology = applied(vhost, management)
    if topology is None:
        return
    verdict = provision.check(None, topology)
    assert verdict.holds, verdict
    assert [check.sentence for check in verdict.checks] == [
        "A probe would arrive in orders after 0s."
    ]
    snapshot = observe(management)
    assert provision.plan_for(topology, snapshot).is_empty
    (use,) = quorum_retry.recognize(snapshot.definitions)
    assert (use.params, use.missing) == (PARAMS, ())
    provision.remove(None, topology)
    left = observe(management).declared
    assert {q.name for q in left.queues} == set()
    assert "orders" not in {exchange.name for exchange in left.exchanges}


def test_teardown_is_refused_while_a_message_waits_for_its_next_attempt(
    vhost: Vhost, management: Management
) -> None:
    params = quorum_retry_params.Params("orders", "failed", 600_000 * MS, 600_000 * MS, 5)
    topology = applied(vhost, management, params)
    if topology is None:
        return
    gaps_of(vhost, 1, lambda channel, tag: channel.basic_reject(tag, True))
    eventually(
        lambda: management.queue("orders").get("messages_delayed") == 1, "the broker counts it"
    )
    with pytest.raises(Refusal, match="The topology holds 1 message "):
        provision.remove(None, topology)
    provision.remove(None, topology, typed_name="orders")
