"""What the article of seed 003 promises of delay queues, on real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
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
from topology.definitions import Arguments, Queue
from topology.message import Publish
from topology.models import State, Topology
from topology.operations import provision
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_queues.params import Params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.structure.copies import Copy

pytestmark = pytest.mark.django_db

ONE, TWO, MINUTE = timedelta(seconds=1), timedelta(seconds=2), timedelta(minutes=1)
SHORT = Params("work", (ONE, TWO))
# Not as anybody would declare it again, so that a change would show.
WORK = Queue("work", arguments=Arguments({"x-queue-type": "classic", "x-max-priority": 3}))


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_queue(WORK)
        yield session


def applied(vhost: Vhost, params: Params) -> Topology:
    broker = make_broker(vhost)
    return applied_topology(create_topology(None, broker, delay_queues.KIND, params))


def publish(vhost: Vhost, *parked_messages: tuple[timedelta, bytes]) -> float:
    """Into the delays in this order; the moment before, on the monotonic clock."""
    with publisher(address_of(vhost), "test") as channel:
        before = time.monotonic()
        for delay, body in parked_messages:
            route = delay_queues.route(SHORT, delay, "work")
            sent = Publish("", route.routing_key, build_properties(delivery_mode=2), body)
            channel.publish_by(route, sent)
    return before


def arrivals(consumer: Consumer, number: int) -> list[tuple[Delivery, float]]:
    """The next messages with the moments of their arrival, acknowledged."""
    found = []
    for _ in range(number):
        (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
        found.append((delivery, time.monotonic()))
        consumer.ack(through=delivery.tag)
    return found


def depth(management: Management, name: str) -> int:
    found: int = management.queue(name).get("messages", 0)
    return found


@every_generation
def test_a_shorter_delay_is_not_held_up_by_a_longer_and_each_delay_keeps_its_order(
    vhost: Vhost, management: Management
) -> None:
    applied(vhost, SHORT)
    parked_messages = [(TWO, b"a2"), (TWO, b"b2"), (ONE, b"a1"), (TWO, b"c2"), (ONE, b"b1")]
    with Consumer(address_of(vhost), "work") as consumer:
        sent = publish(vhost, (timedelta(0), b"now"), *parked_messages)
        found = arrivals(consumer, 6)
    bodies = [delivery.message.body for delivery, _ in found]
    assert bodies == [b"now", b"a1", b"b1", b"a2", b"b2", b"c2"]
    for delivery, arrived in found[1:]:
        asked = ONE if delivery.message.body.endswith(b"1") else TWO
        assert arrived - sent >= asked.total_seconds()


def test_what_comes_out_is_read_with_its_delay(vhost: Vhost, management: Management) -> None:
    applied(vhost, SHORT)
    with Consumer(address_of(vhost), "work") as consumer:
        publish(vhost, (ONE, b"x"))
        ((delivery, _),) = arrivals(consumer, 1)
    message = delivery.message
    copy = Copy(message.exchange, message.routing_key, message.headers)
    reading = delay_queues.read(SHORT, copy)
    assert reading is not None
    assert (reading.phase, reading.delay, reading.queue) == ("exit", ONE, "work")
    assert reading.attempt == 1


# A program of its own, with pika as everybody has it; it ends itself when all is over.
CONSUMER = """
import json, sys, time
import pika

url, example = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()


def work(body):
    print(json.dumps(["tried", body.decode(), time.monotonic()]))
    if body == b"over":
        connection.close()
        sys.exit()
    return body == b"good"


def inform_someone(properties, body):
    print(json.dumps(["informed", body.decode(), properties.headers]))
    channel.basic_publish("", "work", b"over", mandatory=True)


exec(example)
"""


def run_example(vhost: Vhost) -> list[Any]:
    """What the consumer of the explanation tried and whom it told, in order."""
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, vhost.amqp_url, delay_queues.consumer_example(SHORT)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_example_counts_its_attempts_climbs_the_delays_and_parks_at_last(
    vhost: Vhost, management: Management
) -> None:
    """Run as it stands; one message fails until it is parked, and one beside it does not."""
    applied(vhost, SHORT)
    publish(vhost, (timedelta(0), b"bad"), (timedelta(0), b"good"))
    reported = run_example(vhost)
    assert [(what, body) for what, body, _ in reported] == [
        ("tried", "bad"),
        ("tried", "good"),
        ("tried", "bad"),
        ("tried", "bad"),
        ("informed", "bad"),
        ("tried", "over"),
    ]
    first, second, third = (at for what, body, at in reported if (what, body) == ("tried", "bad"))
    assert second - first >= ONE.total_seconds()
    assert third - second >= TWO.total_seconds()
    assert reported[4] == ["informed", "bad", {"attempt": 3}]
    with Consumer(address_of(vhost), "work_parked") as consumer:
        ((delivery, _),) = arrivals(consumer, 1)
    assert delivery.message.body == b"bad"
    assert delivery.message.properties.delivery_mode == 2
    assert delivery.message.headers == {"attempt": 3}
    names = ("work_dlq_1", "work_dlq_2")
    eventually(lambda: not any(depth(management, name) for name in names), "nothing waits")


@every_generation
def test_a_message_published_again_with_its_history_is_counted_anew_from_4_0_on(
    vhost: Vhost, management: Management
) -> None:
    """Why the example counts in a header of its own."""
    applied(vhost, SHORT)
    with Consumer(address_of(vhost), "work") as consumer:
        publish(vhost, (ONE, b"x"))
        ((first, _),) = arrivals(consumer, 1)
        with publisher(address_of(vhost), "test") as channel:
            channel.publish(Publish("", "work_dlq_1", first.message.properties, b"x"))
        ((second, _),) = arrivals(consumer, 1)
    history = read_history(second.message.headers)
    is_believed = observe(management).version_tuple < (4, 0)
    assert history.count("work_dlq_1", "expired") == (2 if is_believed else 1)


def test_the_work_queue_and_its_messages_are_left_alone_from_apply_to_teardown(
    vhost: Vhost, management: Management
) -> None:
    topology = create_topology(None, make_broker(vhost), delay_queues.KIND, SHORT)
    publish(vhost, (timedelta(0), b"mine"))
    before = observe(management).declared
    provision.apply(None, topology)
    topology.refresh_from_db()
    made = {t.identity for t in observe(management).declared} - {t.identity for t in before}
    assert made == {("queue", "work_dlq_1"), ("queue", "work_dlq_2")}
    assert topology.owned_identities == made
    snapshot = observe(management)
    assert provision.plan_for(topology, snapshot).is_empty
    (use,) = delay_queues.recognize(snapshot.definitions)
    assert (use.params, use.missing) == (SHORT, ())
    verdict = provision.check(None, topology)
    assert verdict.holds
    assert [check.sentence for check in verdict.checks[:2]] == [
        "A probe would arrive in work after 1s.",
        "A probe would arrive in work after 2s.",
    ]
    provision.remove(None, topology)
    assert observe(management).declared == before
    with Consumer(address_of(vhost), "work") as consumer:
        ((delivery, _),) = arrivals(consumer, 1)
    assert delivery.message.body == b"mine"


def test_verify_says_that_the_work_queue_is_missing(vhost: Vhost) -> None:
    topology = applied(vhost, Params("nobody", (ONE,)))
    verdict = provision.check(None, topology)
    assert not verdict.holds
    assert "has no queue for the key “nobody”" in verdict.checks[0].sentence


def test_messages_that_wait_are_in_the_way_of_a_teardown(
    vhost: Vhost, management: Management
) -> None:
    params = Params("work", (MINUTE,))
    topology = applied(vhost, params)
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "work_dlq_60", build_properties(delivery_mode=2), b"waits"))
    eventually(lambda: depth(management, "work_dlq_60") == 1, "the broker counts it")
    with pytest.raises(Refusal, match="1 in work_dlq_60"):
        provision.remove(None, topology)
    assert depth(management, "work_dlq_60") == 1


def test_a_delay_queue_with_another_time_is_a_conflict_and_nothing_is_changed(
    vhost: Vhost, management: Management
) -> None:
    theirs = Queue(
        "work_dlq_1",
        arguments=Arguments(
            {
                "x-queue-type": "classic",
                "x-message-ttl": 1500,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "work",
            }
        ),
    )
    management.declare_queue(theirs)
    before = observe(management).declared
    topology = create_topology(None, make_broker(vhost), delay_queues.KIND, SHORT)
    with pytest.raises(Refusal, match=r"existing objects\. Delayboard changed nothing"):
        provision.apply(None, topology)
    after = observe(management)
    assert after.declared == before
    topology.refresh_from_db()
    assert (topology.state, topology.owned) == (State.PLANNED, [])
    (use,) = delay_queues.recognize(after.definitions)
    assert use.missing == (
        "The TTL of “work_dlq_1” is 1.5s, which differs from the seconds in the name.",
    )
