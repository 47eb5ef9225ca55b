"""Histories as three generations of brokers write them, read, drawn and shown."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.dead_letters.message_history import build_history, path_graph
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker, make_user
from tests.delayboard.builders import parked
from tests.publishing import publisher
from tests.topology.builders import a_queue
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.deaths import History, read_history
from topology.definitions import Queue
from topology.message import Message, Publish
from topology.models import Role

pytestmark = [pytest.mark.django_db(transaction=True), every_generation]

LEVELS = 28


def declared(vhost: Vhost, queues: Iterable[Queue]) -> None:
    with Management(address_of(vhost)) as management:
        for queue in queues:
            management.declare_queue(queue)


def sent(vhost: Vhost, queue: str) -> None:
    with publisher(address_of(vhost), "test") as channel:
        properties = build_properties({"n": 1}, delivery_mode=2, message_id="m1")
        channel.publish(Publish("", queue, properties, b'{"n": 1}'))


def arrived(vhost: Vhost, queue: str) -> Message:
    def look() -> Message | None:
        with getter(address_of(vhost), queue) as source:
            delivery = source.get()
            if delivery:
                source.ack([delivery.tag])
            return delivery.message if delivery else None

    return eventually(look, f"a message in {queue}")


def next_of(consumer: Consumer) -> Delivery:
    (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
    return delivery


def shown(vhost: Vhost, message: Message) -> str:
    """The page of the message, parked, with its broker there."""
    broker = make_broker(vhost)
    (row,) = parked(broker, message)
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    answer = client.get(reverse("parked_message", args=[broker.slug, row.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def history_of(message: Message) -> History:
    history = read_history(message.headers)
    assert history.problems == ()
    return history


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_loop_tells_its_rounds_and_where_it_died_for_the_last_time(
    vhost: Vhost, kind: str
) -> None:
    limit = {"x_delivery_limit": -1} if kind == "quorum" else {}
    declared(
        vhost,
        [
            a_queue("work", type=kind, dlx="", key="retry", **limit),
            a_queue("retry", type=kind, ttl=20, dlx="", key="work"),
            a_queue("dead"),
        ],
    )
    sent(vhost, "work")
    with Consumer(address_of(vhost), "work") as consumer:
        for _ in range(3):
            consumer.reject(next_of(consumer))
        last = next_of(consumer)
        consumer.ack(through=last.tag)
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "dead", last.message.properties, last.message.body))
    message = arrived(vhost, "dead")
    history = history_of(message)
    assert [(d.queue, d.reason, d.count) for d in history.deaths] == [
        ("work", "rejected", 3),
        ("retry", "expired", 3),
    ]
    steps = build_history(message, history)
    assert [step.what for step in steps] == [
        "published",
        "rejected",
        "expired",
        "last expired",
    ]
    ways = {(e.source, e.target) for e in path_graph(message, history, "dead").edges}
    assert ways == {
        ("queue/work", "queue/retry"),
        ("queue/retry", "queue/work"),
        ("queue/retry", "queue/dead"),
    }
    assert "6 deaths in total." in shown(vhost, message)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_twenty_eight_levels_are_told_one_by_one(vhost: Vhost, kind: str) -> None:
    names = [f"level-{number:02}" for number in range(LEVELS)]
    following = [*names[1:], "dead"]
    queues = [
        a_queue(name, type=kind, ttl=1, dlx="", key=then)
        for name, then in zip(names, following, strict=True)
    ]
    declared(vhost, [a_queue("dead"), *queues])
    sent(vhost, names[0])
    message = arrived(vhost, "dead")
    history = history_of(message)
    assert sorted(death.queue for death in history.deaths) == names
    assert history.deaths[0].queue == names[0]
    assert history.total == LEVELS
    page = shown(vhost, message)
    assert all(name in page for name in names)
    graph = path_graph(message, history, "dead")
    assert len(graph.nodes) == LEVELS + 1
    ends = [edge.source for edge in graph.edges if edge.target == "queue/dead"]
    assert ends == [f"queue/{names[-1]}"]
