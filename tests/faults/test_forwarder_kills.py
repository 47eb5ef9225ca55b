"""Killing the forwarder at any moment loses no message; what was not confirmed may be there
twice.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from pytest_django import Settings

from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.brokers import Vhost
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.faults.forking import forked
from tests.faults.processes import environment, started
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Publish
from topology.models import Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait

pytestmark = pytest.mark.django_db(transaction=True)
LAP = timedelta(milliseconds=100)
PARAMS = busy_wait_params.Params("work", (LAP,))


@pytest.fixture
def topology(vhost: Vhost) -> Topology:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    return applied_topology(create_topology(None, make_broker(vhost), busy_wait.KIND, PARAMS))


def delay_all(vhost: Vhost, laps: dict[str, int]) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for name, number in laps.items():
            route = busy_wait.route(PARAMS, number * LAP, "work")
            stamped = route.make_headers(time.time_ns() // 1_000_000)
            properties = build_properties(stamped, message_id=name, delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"))


class Arrivals:
    """Counts what comes out, by message id, and what came before it was due."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.ids: Counter[str] = Counter()
        self.early: list[str] = []

    def number(self) -> int:
        for delivery in self._consumer.batch(limit=500, limit_bytes=10**7, wait=0.05, linger=0):
            name = delivery.message.properties.message_id or ""
            self.ids[name] += 1
            if delivery.received_at.timestamp() * 1000 < delivery.message.headers["due-at-ms"]:
                self.early.append(name)
            self._consumer.ack(through=delivery.tag)
        return len(self.ids)

    def has(self, number: int) -> bool:
        return self.number() >= number


@pytest.mark.parametrize(
    ("kills", "messages"),
    [(3, 400), pytest.param(20, 4000, marks=pytest.mark.long)],
)
def test_kills_at_any_moment_lose_no_message(
    vhost: Vhost, settings: Settings, topology: Topology, kills: int, messages: int
) -> None:
    names = [f"m{number}" for number in range(messages)]
    shares = [names[number :: kills + 1] for number in range(kills + 1)]
    with Consumer(address_of(vhost), "work") as consumer:
        seen = Arrivals(consumer)
        for share in shares[:-1]:
            known = seen.number()
            with forked("worker", "--only", task_key("wait", topology.slug)):
                delay_all(vhost, {name: random.randint(1, 40) for name in share})
                goal = known + random.randint(1, len(share) * 3 // 4)
                eventually(partial(seen.has, goal), "the forwarder is at work", seconds=60)
        delay_all(vhost, {name: random.randint(1, 40) for name in shares[-1]})
        with forked("worker", "--only", task_key("wait", topology.slug)):
            eventually(partial(seen.has, messages), "all have arrived", seconds=60)
        assert set(seen.ids) == set(names)
        assert seen.early == []
        assert seen.ids.total() - messages <= kills * settings.MESSAGES_IN_FLIGHT


def test_a_forwarder_that_is_asked_to_end_does_so_at_once_and_doubles_nothing(
    vhost: Vhost, topology: Topology
) -> None:
    first = {f"first {number}": 1 for number in range(100)}
    later = {f"later {number}": 40 + number % 20 for number in range(100)}
    with Consumer(address_of(vhost), "work") as consumer:
        seen = Arrivals(consumer)
        delay_all(vhost, first)
        with started(
            "worker", "--only", task_key("wait", topology.slug), variables=environment()
        ) as forwarder:
            eventually(partial(seen.has, 100), "the forwarder is at work", seconds=60)
            delay_all(vhost, later)
            forwarder.send_signal(signal.SIGTERM)
            said, _ = forwarder.communicate(timeout=120)
        assert forwarder.returncode == 0
        assert b"The background task has ended." in said
        assert b"Traceback" not in said
        with forked("worker"):
            eventually(partial(seen.has, 200), "the worker's forwarder goes on", seconds=60)
            eventually(
                lambda: BackgroundTask.objects.get(key=task_key("wait", topology.slug)).details.get(
                    "passed"
                ),
                "the background task reports what it passed on",
            )
        assert seen.ids == dict.fromkeys(first | later, 1)


def test_without_the_processing_queue_the_background_task_says_why_and_goes_on_when_it_is_back(
    vhost: Vhost, topology: Topology
) -> None:
    with Management(address_of(vhost)) as management:
        management.delete_queue("work", only_if_empty=False)
        delay_all(vhost, {"m": 1})

        def error() -> str:
            row = BackgroundTask.objects.filter(key=task_key("wait", topology.slug)).first()
            return row.last_error if row else ""

        with forked("worker", "--only", task_key("wait", topology.slug)):
            assert "The queue “work” does not exist" in eventually(error, "it says why")
            management.declare_queue(Queue("work"))
            with Consumer(address_of(vhost), "work") as consumer:
                eventually(partial(Arrivals(consumer).has, 1), "it goes on", seconds=60)
            eventually(lambda: not error(), "all is well again")
