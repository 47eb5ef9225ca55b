"""What the article of seed 004 promises, on a real broker."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair
from tests.publishing import publisher
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Refused
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.message import Publish

pytestmark = pytest.mark.django_db


def next_message(consumer: Consumer) -> tuple[Delivery, float]:
    got = consumer.batch(limit=1, limit_bytes=1_000_000, wait=60, linger=0)
    assert got, "nothing arrived"
    return got[0], time.monotonic()


def send(address: Address, exchange: str, key: str = "orders", **stated: Any) -> float:
    with publisher(address, "test") as channel:
        before = time.monotonic()
        channel.publish(Publish(exchange, key, build_properties(**stated), b'{"n": 1}'))
        return before


@every_generation
def test_a_message_published_to_the_retry_side_arrives_after_its_delay_and_never_before(
    vhost: Vhost,
) -> None:
    applied_pair(vhost, delay="400ms")
    address = address_of(vhost)
    with Consumer(address, "orders") as consumer:
        for _ in range(5):
            sent = send(address, "orders-retry", message_id=str(uuid.uuid4()))
            delivery, arrived = next_message(consumer)
            consumer.ack(through=delivery.tag)
            assert arrived - sent >= 0.4


def test_a_rejected_message_goes_round_and_its_history_counts_the_rounds(vhost: Vhost) -> None:
    applied_pair(vhost, delay="200ms")
    address = address_of(vhost)
    send(address, "orders")
    with Consumer(address, "orders") as consumer:
        for _ in range(3):
            delivery, rejected = next_message(consumer)
            consumer.reject(delivery)
        delivery, arrived = next_message(consumer)
        assert arrived - rejected >= 0.2
        history = read_history(delivery.message.headers)
        assert history.count("orders", "rejected") == 3
        assert history.count("orders-retry", "expired") == 3
        assert history.deaths[0].queue == "orders"
        assert history.problems == ()
        consumer.ack(through=delivery.tag)


def test_an_unroutable_message_is_returned_and_a_missing_exchange_named(vhost: Vhost) -> None:
    applied_pair(vhost)
    with pytest.raises(Refused, match="has no queue for the key “nobody”"):
        send(address_of(vhost), "orders", "nobody")
    with pytest.raises(Refused, match="exchange “missing” does not exist"):
        send(address_of(vhost), "missing")
