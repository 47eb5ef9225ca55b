"""Messages with delays of all lengths over three topologies, and what truly became of each."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Thread

from tests.brokers import Vhost
from tests.builders import address_of, make_broker
from tests.faults.truth import SentMessage
from tests.publishing import publisher
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import Publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Publish
from topology.models import Broker
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair

STEP = timedelta(milliseconds=100)
SEEN = delay_levels_params.Params("own", "seen", 8, STEP, "classic")
UNSEEN = delay_levels_params.Params("own", "not_observed", 8, STEP, "quorum")
ARRIVALS = "arrivals"


@dataclass(frozen=True)
class Course:
    """How many messages over how many seconds, for how long they wait, and when the worker dies.

    `kills` are seconds after the first message. The pair's own delay lies within `delays` too.
    """

    messages: int
    seconds: float
    delays: tuple[int, int]
    kills: tuple[float, ...]


def three_topologies(vhost: Vhost, pair: retry_pair_params.Params) -> Broker:
    """A pair, levels whose exits are seen, and levels whose exits nobody sees; all bound."""
    broker = make_broker(vhost)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(ARRIVALS))
    for kind, params in (
        (retry_pair.KIND, pair),
        (delay_levels.KIND, SEEN),
        (delay_levels.KIND, UNSEEN),
    ):
        apply(None, create_topology(None, broker, kind, params))
    with publisher(address_of(vhost), "test") as channel:
        for levels in (SEEN, UNSEEN):
            channel.declare(delay_levels.route(levels, STEP, ARRIVALS).declares)
    return broker


@dataclass
class Traffic:
    """Sends and receives on threads of its own; `messages` is the truth, by message id."""

    address: Address
    course: Course
    pair: retry_pair_params.Params
    messages: dict[str, SentMessage] = field(default_factory=dict)
    is_sent: Event = field(default_factory=Event)
    is_over: Event = field(default_factory=Event)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        threads = [Thread(target=self._send)]
        threads += [Thread(target=self._receive, args=(q,)) for q in (ARRIVALS, self.pair.name)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    @property
    def has_arrived(self) -> bool:
        return self.is_sent.is_set() and all(one.arrived for one in list(self.messages.values()))

    def _send(self) -> None:
        chance = random.Random(self.course.messages)
        with publisher(self.address, "test") as channel:
            begun = time.monotonic()
            for number in range(self.course.messages):
                due = begun + number * self.course.seconds / self.course.messages
                if self.is_over.wait(max(0.0, due - time.monotonic())):
                    return
                self._send_one(channel, number, chance)
        self.is_sent.set()

    def _send_one(self, channel: Publisher, number: int, chance: random.Random) -> None:
        shortest, longest = self.course.delays
        delay = STEP * chance.randint(shortest * 10, longest * 10)
        if number % 5 == 0:
            delay = self.pair.delay
            route = retry_pair.route(self.pair, delay, self.pair.name)
        else:
            params = SEEN if number % 2 else UNSEEN
            route = delay_levels.route(params, delay, ARRIVALS)
        name = f"m{number}"
        begun = time.time()
        stated = build_properties(
            {"timestamp_in_ms": int(begun * 1000)}, message_id=name, delivery_mode=2
        )
        message = SentMessage(delay.total_seconds(), begun, float("inf"))
        self.messages[name] = message
        channel.publish(Publish(route.exchange, route.routing_key, stated, b"{}"))
        message.confirmed = time.time()

    def _receive(self, queue: str) -> None:
        with Consumer(self.address, queue) as consumer:
            while not self.is_over.is_set():
                for delivery in consumer.batch(limit=100, limit_bytes=10**6, wait=0.2, linger=0):
                    message = self.messages[delivery.message.properties.message_id or ""]
                    message.arrived = delivery.received_at.timestamp()
                    consumer.ack(through=delivery.tag)
