"""What a stream tap does to what it records, and a tap that does no harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.conf import settings

from analytics.models import Gap, ScheduledMessage
from analytics.recorder.record import record
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import follow_log, logged
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.publisher import publisher
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.properties.read import read_properties
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import Properties, Publish
from topology.models import Topology
from topology.provisioning.taps import breaking_header

pytestmark = [pytest.mark.django_db(transaction=True), every_generation]
SECONDS = 30.0


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def entry(name: str, value: bytes) -> bytes:
    return bytes([len(name)]) + name.encode() + value


def table(value: bytes) -> bytes:
    return b"F" + sized(entry("k", value))


def array(value: bytes) -> bytes:
    return b"A" + sized(value)


def death(value: bytes) -> bytes:
    return array(b"F" + sized(entry("count", b"l" + bytes(7) + b"\x01") + entry("k", value)))


# Every type that RabbitMQ reads: it refuses “U” and numbers that are none, whatever is bound.
VALUES = {
    "text": b"S" + sized(b"y" * 4096),
    "no text": b"S" + sized(b"\xff\xfe"),
    "long text": b"S" + sized(b"y" * 4097),
    "s": b"s\x00\x05",
    "u": b"u\xff\xff",
    "I": b"I\xff\xff\xff\xff",
    "i": b"i\xff\xff\xff\xff",
    "l": b"l" + b"\xff" * 8,
    "L": b"L" + b"\x00" * 8,
    "b": b"b\xff",
    "B": b"B\xff",
    "t": b"t\x01",
    "f": b"f?\xc0\x00\x00",
    "d": b"d?\xf8" + bytes(6),
    "D": b"D\x01\x00\x00\x00\x0f",
    "T": b"T" + (1_700_000_000).to_bytes(8, "big"),
    "T of no year": b"T" + b"\xff" * 8,
    "x": b"x" + sized(b"\x00\xff"),
    "V": b"V",
    "F": table(b"t\x01"),
    "A": array(b"t\x01"),
}
PLACES: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda value: entry("k", value),
    "x- header": lambda value: entry("x-k", value),
    "table": lambda value: entry("k", table(value)),
    "x- table": lambda value: entry("x-k", table(value)),
    "list": lambda value: entry("k", array(value)),
    "x- list": lambda value: entry("x-k", array(table(array(value)))),
    "x-death": lambda value: entry("x-death", death(value)),
    "filter": lambda value: entry("x-stream-filter-value", value),
}
CASES = [(place, name) for place in PLACES for name in VALUES]
AT_TOP = {("header", "D"), ("x- header", "D"), ("filter", "D")}
BREAKS = {
    "3.10": AT_TOP,
    "4": AT_TOP
    | {(place, "D") for place in ("x- table", "x- list", "x-death")}
    | {("filter", name) for name in VALUES if name != "text"},
}


def with_header(header: bytes, *, is_durable: bool = True) -> Properties:
    stated = b"\x30\x00" + sized(header) + (b"\x02" if is_durable else b"\x01")
    return read_properties(stated)


DECIMAL = with_header(entry("price", VALUES["D"]))
TRANSIENT_DECIMAL = with_header(entry("price", VALUES["D"]), is_durable=False)


def a_queue(name: str, **arguments: Any) -> Queue:
    stated = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return Queue(name, arguments=Arguments(stated))


def bodies_of_stream(address: Address, number: int) -> set[bytes]:
    """Once it holds so many, and what comes besides within a second."""
    found: set[bytes] = set()
    deadline = time.monotonic() + SECONDS
    with Consumer(address, "tap", prefetch=500, start="first") as consumer:
        while True:
            taken = consumer.batch(limit=500, limit_bytes=10**8, wait=1.0)
            found |= {one.message.body for one in taken}
            if taken:
                consumer.ack_through(taken[-1])
            elif len(found) >= number:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {number}"


class Tapped:
    """An exchange with a stream and a real queue, and a way into it."""

    def __init__(self, management: Management, address: Address, way: str) -> None:
        self._management, self._address, self._way = management, address, way
        self._queues = 0
        management.declare_exchange(Exchange("tapped", "fanout"))
        for queue in (a_queue("tap", queue_type="stream"), a_queue("real")):
            management.declare_queue(queue)
            management.bind(Binding("tapped", queue.name, ""))
        self.renew()

    def renew(self) -> None:
        """Another queue that dead-letters into it: the last one may be broken."""
        self._queues += 1
        if self._way != "publish":
            stated = {"queue_type": self._way, "message_ttl": 1, "dead_letter_exchange": "tapped"}
            self._management.declare_queue(a_queue(f"work{self._queues}", **stated))

    def send(self, properties: Properties, body: bytes) -> bool:
        """Whether the broker confirmed it, by a connection of its own."""
        to = ("tapped", "") if self._way == "publish" else ("", f"work{self._queues}")
        try:
            with publisher(self._address, "test") as channel:
                channel.publish(Publish(*to, properties, body))
        except BrokerError:
            return False
        return True


@pytest.mark.parametrize("way", ["publish", "classic", "quorum"])
def test_which_headers_break_a_stream_tap(broker_node: PrivateNode, vhost: Vhost, way: str) -> None:
    """Published past it, and dead-lettered past it from a classic and a quorum queue."""
    address = address_of(vhost)
    is_new = broker_node.version >= "4"
    breaks = BREAKS["4" if is_new else "3.10"]
    stated = {case: with_header(PLACES[case[0]](VALUES[case[1]])) for case in CASES}
    bodies = {case: "/".join(case).encode() for case in CASES}
    # 3.10 hands no dead letter to a stream, so that none can break it.
    takes = [case for case in CASES if case not in breaks] if is_new or way == "publish" else []
    with Management(address) as management:
        tapped = Tapped(management, address, way)
        confirmed = set()
        for case in sorted(breaks):
            if tapped.send(stated[case], bodies[case]):
                confirmed.add(case)
            if is_new:
                tapped.renew()
        for case in CASES:
            if case not in breaks:
                assert tapped.send(stated[case], bodies[case]), case
    assert bodies_of_stream(address, len(takes)) == {bodies[case] for case in takes}
    if way == "publish":
        assert not confirmed
    if is_new or way == "publish":
        judged = {case for case in CASES if breaking_header(stated[case].headers)}
        assert judged == BREAKS["4"]


def get(vhost: Vhost, queue: str) -> bytes:
    """The next message's body; it is taken out."""

    def look() -> bytes | None:
        with getter(address_of(vhost), queue) as taken:
            delivery = taken.get()
            if delivery is not None:
                taken.ack(delivery)
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


def test_rejected_messages_with_a_decimal_do_no_harm_to_a_topology_of_today(
    vhost: Vhost, event_log: Path
) -> None:
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
