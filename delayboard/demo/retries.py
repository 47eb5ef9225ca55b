"""Demo work and its consumers, one for each pattern that retries."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from threading import Event
from typing import Any, Literal

from django.db import connection

from delayboard.demo.apply_topology import apply_topology
from topology.broker.amqp.consumer import Consumer, Delivery
from topology.broker.amqp.publisher import Publisher, publisher
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties, edit_properties, strip_for_replay
from topology.deaths import read_history
from topology.definitions import Arguments, Queue
from topology.message import ATTEMPT_HEADER, Message, Properties, Publish
from topology.models import Broker
from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS

# Now reports a queue with ten more dead letters in an hour: only that of webhooks grows as much.
FLAKY_SHARE, POISONED_SHARE = 0.3, 0.005
PAUSE_SECONDS = (3.0, 9.0)
TICK_SECONDS = 0.5
# The broker itself gives up.
NEVER = 1_000_000
CLASSIC = Arguments({"x-queue-type": "classic"})
# The end of the name of a queue of dead letters.
DEAD = "-dead"


@dataclass(frozen=True)
class Trade:
    """One consumer with its way to retry.

    `texts` are the pattern's parameters, `limit` how many failures it forgives. It `rejects` or
    `returns` and lets the broker bring the message back, or `publishes` it into a delay itself.
    """

    kind: str
    texts: Mapping[str, str]
    what: str
    gives_back: Literal["rejects", "returns", "publishes"]
    limit: int
    parks: bool = True

    @property
    def pattern(self) -> Pattern:
        return PATTERNS[self.kind]

    @cached_property
    def params(self) -> Any:
        return self.pattern.parse(self.texts)

    @property
    def queue(self) -> str:
        """Where its work arrives."""
        return self.pattern.targets(self.params)[0]

    @property
    def parked(self) -> str:
        return f"{self.queue}{DEAD}"


TRADES = (
    Trade("retry_pair", {"name": "orders", "delay": "15s"}, "order.placed", "rejects", 3),
    # The article's consumer drops what failed three times.
    Trade("retry_loop", {"name": "sms", "delay": "20s"}, "sms.send", "rejects", 2, parks=False),
    Trade(
        "retry_ladder",
        {"name": "invoices", "delays": "10s, 30s, 1m"},
        "invoice",
        "rejects",
        NEVER,
        parks=False,
    ),
    Trade("delay_queues", {"queue": "webhooks", "delays": "10s, 1m"}, "webhook", "publishes", 2),
    Trade("busy_wait", {"queue": "calls", "delays": "15s, 30s, 1m"}, "call", "publishes", 3),
    Trade(
        "quorum_retry",
        {"name": "payments", "shortest": "5s", "longest": "20s", "limit": "4"},
        "payment",
        "returns",
        NEVER,
        parks=False,
    ),
)


def trade(broker: Broker, trade: Trade, stop: Event) -> None:
    """Set up what is missing, then send work and do it, flakily, until `stop`.

    Topologies that this broker cannot hold, or that were deleted, are left alone. Raises
    BrokerError, and Refusal when other objects have the names.
    """
    if not prepare(broker, trade):
        stop.wait()
        return
    connection.close()
    address = broker.address
    with (
        Consumer(address, trade.queue, prefetch=10) as consumer,
        # Nobody would be there to answer heartbeats while it waits for work.
        publisher(address, f"demo {trade.what}", heartbeat=0) as channel,
    ):
        due = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= due:
                due = time.monotonic() + random.uniform(*PAUSE_SECONDS)
                send(channel, trade, *new_work(trade))
            for delivery in consumer.batch(
                limit=1, limit_bytes=1_000_000, wait=TICK_SECONDS, linger=0
            ):
                handle_message(trade, delivery, consumer, channel)


def prepare(broker: Broker, trade: Trade) -> bool:
    """Whether its topology stands: with the queue of its work, which may be nobody's."""
    with Management(broker.address) as management:
        seen = observe(management)
        if trade.pattern.obstacle(seen.version_tuple):
            return False
        own = {queue.name for queue in trade.pattern.definitions(trade.params).queues}
        if trade.queue not in own:
            management.declare_queue(Queue(trade.queue, arguments=CLASSIC))
        if trade.parks:
            management.declare_queue(Queue(trade.parked, arguments=CLASSIC))
    return apply_topology(broker, trade.kind, trade.params) is not None


def new_work(trade: Trade) -> tuple[Properties, bytes]:
    """A few of them fail for ever."""
    is_hopeless = random.random() < POISONED_SHARE
    body = {"for": random.choice(["Ada", "Grace", "Edsger"]), "hopeless": is_hopeless}
    properties = build_properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=str(uuid.uuid4()),
        type=trade.what,
        app_id="demo-shop",
    )
    return properties, json.dumps(body).encode()


def send(
    channel: Publisher,
    trade: Trade,
    properties: Properties,
    body: bytes,
    delay: timedelta = timedelta(0),
) -> None:
    """By the pattern's own route. Raises BrokerError."""
    route = trade.pattern.route(trade.params, delay, trade.queue)
    stamped = route.make_headers(time.time_ns() // 1_000_000)
    make_headers = edit_properties(properties, set_headers=stamped)
    channel.publish_by(route, Publish(route.exchange, route.routing_key, make_headers, body))


def handle_message(
    trade: Trade, delivery: Delivery, consumer: Consumer, channel: Publisher
) -> None:
    """What is published again or parked is confirmed before it is acked."""
    message = delivery.message
    if not fails(message.body):
        consumer.ack_through(delivery)
        return
    failures = failures_of(trade, message)
    if failures < trade.limit and trade.gives_back != "publishes":
        consumer.reject(delivery, requeue=trade.gives_back == "returns")
        return
    if failures < trade.limit:
        # Its own count: a republished x-death counts nothing from RabbitMQ 4.0 on.
        again = strip_for_replay(message.properties, {ATTEMPT_HEADER: failures + 1})
        delays = trade.params.delays
        send(channel, trade, again, message.body, delays[min(failures, len(delays) - 1)])
    elif trade.parks:
        channel.publish(Publish("", trade.parked, message.properties, message.body))
    consumer.ack_through(delivery)


def failures_of(trade: Trade, message: Message) -> int:
    """How often it failed before: by x-death where the broker brings it back, or by its own."""
    if trade.gives_back != "publishes":
        return read_history(message.headers).count(trade.queue, "rejected")
    stated = message.headers.get(ATTEMPT_HEADER)
    return stated if isinstance(stated, int) else 0


def fails(body: bytes) -> bool:
    return b'"hopeless": true' in body or random.random() < FLAKY_SHARE
