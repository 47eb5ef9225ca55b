"""Messages with a decimal header: a tap does them no harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from django.conf import settings

from analytics.models import Gap, ScheduledMessage
from analytics.recorder.record import record
from tests.analytics.builders import follow_log, logged
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.properties.read import read_properties
from topology.message import Properties, Publish
from topology.models import Topology

pytestmark = [pytest.mark.django_db(transaction=True), every_generation]
SECONDS = 30.0


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def entry(name: str, value: bytes) -> bytes:
    return bytes([len(name)]) + name.encode() + value


def with_header(header: bytes, *, is_durable: bool = True) -> Properties:
    stated = b"\x30\x00" + sized(header) + (b"\x02" if is_durable else b"\x01")
    return read_properties(stated)


DECIMAL = with_header(entry("price", b"D\x01\x00\x00\x00\x0f"))
TRANSIENT_DECIMAL = with_header(entry("price", b"D\x01\x00\x00\x00\x0f"), is_durable=False)


def get(vhost: Vhost, queue: str) -> bytes:
    """The next message's body; it is taken out."""

    def look() -> bytes | None:
        with getter(address_of(vhost), queue) as taken:
            delivery = taken.get()
            if delivery is not None:
                taken.ack([delivery.tag])
            return delivery.message.body if delivery else None

    return eventually(look, f"a message is in {queue}", seconds=SECONDS)


def reject(vhost: Vhost, queue: str, number: int) -> None:
    with Consumer(address_of(vhost), queue) as consumer:
        for _ in range(number):
            (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=SECONDS)
            consumer.reject(delivery)
        consumer.confirm_acks()


def record_until(topology: Topology, is_enough: Callable[[], bool]) -> None:
    stop = Event()
    deadline = time.monotonic() + SECONDS

    def beat(counters: object) -> None:
        follow_log(settings.EVENT_LOG)
        if is_enough():
            stop.set()
        assert time.monotonic() < deadline, f"only {counters} after {SECONDS} seconds"

    record(topology.pk, stop=stop, beat=beat)


def test_rejected_messages_with_a_decimal_do_no_harm(vhost: Vhost, event_log: Path) -> None:
    """Transient ones in the work queue too, and more than a queue's supervisor lets pass."""
    topology = applied_pair(vhost, delay="1s")
    sent = {b"m%d" % number for number in range(8)}
    with publisher(address_of(vhost), "test") as channel:
        for body in sorted(sent):
            channel.publish(Publish("", "orders", TRANSIENT_DECIMAL, body))
        reject(vhost, "orders", len(sent))
        channel.publish(Publish("orders-retry", "orders", DECIMAL, b"past the tap"))
    assert {get(vhost, "orders") for _ in range(9)} == sent | {b"past the tap"}
    record_until(
        topology,
        lambda: (
            ScheduledMessage.objects.filter(left_at=None).count() == 0
            and ScheduledMessage.objects.count() == 9
        ),
    )
    died = [event for event in logged(event_log) if event.death_reason == "rejected"]
    assert {event.death_queue for event in died} == {"orders"}
    assert not Gap.objects.exists()
