"""What tests of replaced queues share: a topology with a queue of other arguments, and traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event, Thread

from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, applied_pair, eventually
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import pipeline
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import newest_death
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Publish
from topology.models import Topology
from topology.patterns.delay_levels.params import Params, delivery_name, level_name

TTL_MS, OLD_TTL_MS = 1500, 1000
LEVELS = Params("own", "shop", 2, timedelta(milliseconds=TTL_MS), "quorum")


@dataclass(frozen=True)
class Drifted:
    """A topology whose delay queue has the shorter TTL; `whole` is the vhost as it should be."""

    topology: Topology
    vhost: Vhost
    queue: str
    exchange: str
    key: str
    end: str
    whole: Definitions


def make_drifted(vhost: Vhost, old_type: str) -> Drifted:
    """A quorum queue that should be the classic one of a retry pair, else the other way round.

    Somebody else has bound it too.
    """
    if old_type == "quorum":
        topology = applied_pair(vhost, delay=f"{TTL_MS}ms")
        queue, key, end = "orders-retry", "orders", "orders"
        exchange = queue
    else:
        topology = applied_levels(vhost, LEVELS)
        exchange = queue = level_name(LEVELS, 0)
        key, end = "0.1.work", "work"
    news = Binding("news", queue, "a", arguments=Arguments({"x-match": "all", "kind": "b"}))
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("news", "headers"))
        management.bind(news)
        if end == "work":
            management.declare_queue(Queue("work"))
            management.bind(Binding(delivery_name(LEVELS), "work", "#.work"))
        whole = observe(management).declared
        wanted = whole.queue(queue)
        assert wanted is not None
        bindings = [binding for binding in whole.bindings if binding.destination == queue]
        management.delete_queue(queue, only_if_empty=False)
        arguments: dict[str, str | int] = {
            "x-queue-type": old_type,
            "x-message-ttl": OLD_TTL_MS,
            "x-dead-letter-exchange": wanted.dead_letter_exchange or "",
        }
        management.declare_queue(Queue(queue, arguments=Arguments(arguments)))
        for binding in bindings:
            if binding.destination_is_queue and binding.source:
                management.bind(binding)
    return Drifted(topology, vhost, queue, exchange, key, end, whole)


def make_edited(vhost: Vhost) -> Drifted:
    """A retry pair with the shorter TTL that is to get the longer one by an edit."""
    topology = applied_pair(vhost, delay=f"{OLD_TTL_MS}ms")
    queue = "orders-retry"
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("news", "fanout"))
        management.bind(Binding("news", queue, ""))
        whole = observe(management).declared
    old = whole.queue(queue)
    assert old is not None
    arguments = Arguments({**old.arguments, "x-message-ttl": TTL_MS})
    wanted = whole.without([old.identity]) | Definitions.of([replace(old, arguments=arguments)])
    return Drifted(topology, vhost, queue, queue, "orders", "orders", wanted)


@dataclass
class Traffic:
    """When each number was published, and where and when it arrived after which queue."""

    published: dict[int, float] = field(default_factory=dict)
    arrived: list[tuple[int, float, str]] = field(default_factory=list)

    @property
    def has_arrived(self) -> bool:
        return len({number for number, *_ in self.arrived}) >= len(self.published)


@contextmanager
def traffic(drifted: Drifted) -> Iterator[Traffic]:
    """Publishes through the block and consumes to the last one; each must be confirmed."""
    seen, publishes, consumes = Traffic(), Event(), Event()
    failed: list[BaseException] = []

    def publish() -> None:
        try:
            with pipeline(address_of(drifted.vhost), "test") as channel:
                while not publishes.is_set():
                    number = len(seen.published)
                    properties = build_properties({"n": number}, delivery_mode=2)
                    sent = Publish(drifted.exchange, drifted.key, properties, b"{}")
                    seen.published[number] = time.time()
                    channel.publish(sent, number)
                    answers = channel.answers(10)
                    assert [answer.kind for _, answer in answers] == ["confirmed"], answers
                    publishes.wait(0.005)
        except BaseException as error:
            failed.append(error)

    def consume() -> None:
        with Consumer(address_of(drifted.vhost), drifted.end) as consumer:
            while not consumes.is_set():
                for one in consumer.batch(limit=500, limit_bytes=10**7, wait=0.1, linger=0):
                    headers = one.message.headers
                    queue, _ = newest_death(headers) or ("", "")
                    seen.arrived.append((headers["n"], one.received_at.timestamp(), queue))
                    consumer.ack(through=one.tag)

    threads = [Thread(target=run, daemon=True) for run in (publish, consume)]
    for thread in threads:
        thread.start()
    try:
        yield seen
        publishes.set()
        threads[0].join(30)
        until = time.monotonic() + 30
        while not seen.has_arrived and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        publishes.set()
        consumes.set()
        for thread in threads:
            thread.join(30)
    assert not failed, failed


def assert_none_lost_doubled_or_hurried(drifted: Drifted, seen: Traffic) -> None:
    assert sorted(number for number, *_ in seen.arrived) == sorted(seen.published)
    for number, at, queue in seen.arrived:
        ttl_ms = OLD_TTL_MS if queue == drifted.queue else TTL_MS
        waited_ms = (at - seen.published[number]) * 1000
        # RabbitMQ counts in whole milliseconds from the one in which a message arrives.
        assert waited_ms > ttl_ms - 1, (number, queue, waited_ms)
    assert {queue for _, _, queue in seen.arrived} == {
        drifted.queue,
        f"{drifted.queue}.replacement",
    }


def assert_as_defined(drifted: Drifted) -> None:
    """A busy broker may list for some seconds what it listed before."""
    with Management(address_of(drifted.vhost)) as management:
        eventually(lambda: observe(management).declared == drifted.whole, "all is as defined")
