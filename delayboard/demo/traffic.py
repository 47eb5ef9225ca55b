"""A little traffic for the demo: a shop that sends orders, and a consumer that is flaky."""

from __future__ import annotations

import json
import random
import uuid
from threading import Event

from delayboard.demo.seed import PARKED, WORK
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer, Delivery
from topology.broker.amqp.publisher import Publisher, publisher
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.message import Publish

GIVE_UP_AFTER = 3
POISONED_SHARE = 0.06
FLAKY_SHARE = 0.25
DELAYED_SHARE = 0.2


def order(number: int) -> Publish:
    """The next order; a few have a currency that no consumer manages to work on."""
    poisoned = random.random() < POISONED_SHARE
    body = {
        "order": number,
        "customer": random.choice(["Ada", "Grace", "Edsger", "Barbara", "Tony"]),
        "amount": round(random.uniform(5, 400), 2),
        "currency": "EUR" if not poisoned else "???",
    }
    properties = build_properties(
        {"tenant": random.randint(1, 5), "source": "demo shop"},
        content_type="application/json",
        delivery_mode=2,
        message_id=str(uuid.uuid4()),
        type="order.placed",
        app_id="demo-shop",
    )
    exchange = f"{WORK}-retry" if random.random() < DELAYED_SHARE else WORK
    return Publish(exchange, WORK, properties, json.dumps(body).encode())


def send_orders(address: Address, stop: Event) -> None:
    """One order every second or three, until `stop`. Raises BrokerError."""
    number = random.randint(10_000, 90_000)
    with publisher(address, "demo shop") as channel:
        while not stop.wait(random.uniform(0.8, 3.0)):
            number += 1
            channel.publish(order(number))


def work_on_orders(address: Address, stop: Event) -> None:
    """Work on orders; reject some, and give those up that failed three times.

    What is given up is published to the parking queue, confirmed, before it is acked: seldom,
    so that its connection goes without heartbeats, which nobody would be there to answer.
    """
    with (
        Consumer(address, WORK, prefetch=10) as consumer,
        publisher(address, "demo consumer", heartbeat=0) as channel,
    ):
        while not stop.is_set():
            for delivery in consumer.batch(limit=1, limit_bytes=1_000_000, wait=0.5, linger=0):
                _work_on(delivery, consumer, channel)


def _work_on(delivery: Delivery, consumer: Consumer, channel: Publisher) -> None:
    message = delivery.message
    if not fails(message.body):
        consumer.ack_through(delivery)
    elif read_history(message.headers).count(WORK, "rejected") < GIVE_UP_AFTER:
        consumer.reject(delivery)
    else:
        channel.publish(Publish("", PARKED, message.properties, message.body))
        consumer.ack_through(delivery)


def fails(body: bytes) -> bool:
    """An order without a currency always does, any other now and then."""
    return b"???" in body or random.random() < FLAKY_SHARE
