"""Taps after crashes: each copy at least once, repeats are marked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.conf import settings

from analytics import minutes
from analytics.log import EventLog
from analytics.models import Gap, Minute, Recording, ScheduledMessage
from analytics.recorder.copies import content_of
from analytics.recorder.record import record
from tests.analytics.builders import follow_log, logged
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually
from tests.publishing import publisher
from topology.broker.amqp import depths
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Arguments, ArgumentValue, Queue
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations.provision import apply
from topology.structure import taps

pytestmark = [pytest.mark.django_db, every_generation]
SECONDS = 30.0
MOST = 300_000


class Crash(Exception):
    """The process ends here."""


def delay(vhost: Vhost, first: int, last: int, body: bytes = b"{}") -> None:
    with publisher(address_of(vhost), "test") as channel:
        for number in range(first, last + 1):
            stated = build_properties(message_id=f"m{number}", delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", stated, body))


def record_until(topology: Topology, is_enough: Callable[[], bool]) -> Mapping[str, object]:
    """Record and keep the index up, as the worker's two tasks do."""
    stop = Event()
    deadline = time.monotonic() + SECONDS
    last: dict[str, object] = {}

    def beat(counters: Mapping[str, object]) -> None:
        last.update(counters)
        follow_log(settings.EVENT_LOG)
        if is_enough():
            stop.set()
        assert time.monotonic() < deadline, f"only {counters} after {SECONDS} seconds"

    record(topology.pk, stop=stop, beat=beat)
    return last


def rows(number: int) -> Callable[[], bool]:
    return lambda: ScheduledMessage.objects.count() >= number


def crash(*_: Any, **__: Any) -> None:
    raise Crash


def crash_after(reported: Callable[..., Any]) -> Callable[..., Any]:
    def act(*arguments: Any, **named: Any) -> None:
        reported(*arguments, **named)
        raise Crash

    return act


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the log": lambda patched: patched.setattr(EventLog, "append", crash),
    "after the log": lambda patched: patched.setattr(
        EventLog, "append", crash_after(EventLog.append)
    ),
    "in the index's transaction": lambda patched: patched.setattr(
        minutes, "count", crash_after(minutes.count)
    ),
    "before the ack": lambda patched: patched.setattr(Consumer, "ack", crash),
    "after the ack": lambda patched: patched.setattr(Consumer, "ack", crash_after(Consumer.ack)),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_no_copy(
    vhost: Vhost, event_log: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topology = applied_pair(vhost, delay="1h")
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    delay(vhost, 5, 9)
    with monkeypatch.context() as patched:
        STEPS[step](patched)
        with pytest.raises(Crash):
            record_until(topology, lambda: False)
    delay(vhost, 10, 12)
    record_until(topology, rows(13))
    recorded = Counter(event.message_id for event in logged(event_log))
    assert set(recorded) == {f"m{number}" for number in range(13)}
    again = {event.message_id for event in logged(event_log) if event.redelivered}
    assert {name for name, times in recorded.items() if times > 1} <= again
    assert ScheduledMessage.objects.count() == 13
    assert sum(minute.entered for minute in Minute.objects.all()) == 13


def declare_anew(vhost: Vhost, topology: Topology) -> None:
    with Management(address_of(vhost)) as management:
        management.delete_queue(topology.tap_queue, only_if_empty=False)
    apply(None, topology)


def test_a_tap_that_was_declared_anew_is_read_from_its_beginning(
    vhost: Vhost, event_log: Path
) -> None:
    """Nobody saw it go."""
    topology = applied_pair(vhost, delay="1h")
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    declare_anew(vhost, topology)
    delay(vhost, 100, 102)
    record_until(topology, rows(8))
    recorded = Counter(event.message_id for event in logged(event_log))
    assert (len(recorded), set(recorded.values())) == (8, {1})


def test_a_tap_that_goes_while_it_is_read_and_comes_back(vhost: Vhost, event_log: Path) -> None:
    topology = applied_pair(vhost, delay="1h")
    delay(vhost, 0, 4)
    deleted = False

    def is_enough() -> bool:
        nonlocal deleted
        if rows(5)() and not deleted:
            deleted = True
            with Management(address_of(vhost)) as management:
                management.delete_queue(topology.tap_queue, only_if_empty=False)
        return False

    with pytest.raises(NotFound, match=topology.tap_queue):
        record_until(topology, is_enough)
    with pytest.raises(NotFound, match=topology.tap_queue):
        record_until(topology, lambda: False)
    apply(None, topology)
    delay(vhost, 0, 2)
    record_until(topology, rows(8))
    (gap,) = Gap.objects.all()
    assert "did not exist" in gap.why
    assert len({event.event_id for event in logged(event_log)}) == 8


def test_what_a_full_tap_dropped_is_a_gap(
    vhost: Vhost, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in taps.ARGUMENTS.values():
        monkeypatch.setitem(arguments, "x-max-length-bytes", MOST)
    topology = applied_pair(vhost, delay="1h")
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    published = 2000
    delay(vhost, 5, 4 + published, b"x" * 500)
    with Management(address_of(vhost)) as management:
        eventually(
            lambda: management.queue(topology.tap_queue).get("message_bytes", 0) > 0.93 * MOST,
            "the broker's figures say that the tap is full",
        )
    long_ago = topology.created_at - timedelta(hours=1)
    Recording.objects.update(read_at=long_ago)
    record_until(topology, lambda: ScheduledMessage.objects.filter(message_id="m2004").exists())
    lost = 5 + published - ScheduledMessage.objects.count()
    assert lost > 0
    (gap,) = Gap.objects.all()
    assert gap.from_at == long_ago
    assert gap.until_at > gap.from_at
    assert "full" in gap.why


def test_only_what_comes_while_a_prefetch_has_no_ack_or_at_the_start_has_waited(
    vhost: Vhost, event_log: Path
) -> None:
    """However long a batch takes: RabbitMQ sends a copy at once while it may."""
    topology = applied_pair(vhost, delay="1h")
    delay(vhost, 0, 9)
    came: list[tuple[str, bool]] = []
    with Consumer(address_of(vhost), topology.tap_queue, prefetch=20) as consumer:

        def take(last: int) -> int:
            """Take all up to this message; the last tag."""
            tag = 0
            while not came or came[-1][0] != f"m{last}":
                for one in consumer.batch(limit=7, limit_bytes=10**6, wait=SECONDS, linger=0):
                    came.append((one.message.properties.message_id or "", one.has_waited))
                    tag = one.tag
            return tag

        def find_backlog() -> None:
            consumer.find_backlog()
            eventually(lambda: not consumer.has_backlog, "the tap is known to be empty")

        consumer.ack(through=take(9))
        find_backlog()
        delay(vhost, 10, 19)
        take(19)
        # It took long, but there was room for more.
        delay(vhost, 20, 29)
        tag = take(29)
        delay(vhost, 30, 34)
        # As a recorder does it: it asks at once, before it takes what waited.
        consumer.ack(through=tag)
        consumer.find_backlog()
        take(34)
        find_backlog()
        delay(vhost, 35, 36)
        take(36)
    waited = [name for name, has_waited in came if has_waited]
    assert waited == [f"m{number}" for number in (*range(10), *range(30, 35))]


def test_a_tap_that_does_not_answer_in_time_is_read_and_its_copies_may_have_waited(
    vhost: Vhost, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = applied_pair(vhost, delay="1h")
    monkeypatch.setattr(depths, "UNANSWERED_SECONDS", 0.0)
    with Consumer(address_of(vhost), topology.tap_queue) as consumer:
        consumer.find_backlog()
        delay(vhost, 1, 1)
        (first,) = consumer.batch(limit=2, wait=SECONDS)
        consumer.ack(through=first.tag)
        consumer.confirm_acks()
        assert consumer.has_backlog
        consumer.find_backlog()
        delay(vhost, 2, 2)
        (second,) = consumer.batch(limit=2, wait=SECONDS)
    assert first.has_waited
    assert second.has_waited


ODD = b"".join(
    (
        b"\x02i8b\xff",
        b"\x02u8B\xff",
        b"\x03u16u\xff\xfe",
        b"\x03u32i\xff\x00\x00\x05",
        b"\x01ll\xff\xff\xff\xff\xff\xff\xff\xf9",
        b"\x01ff?\xc0\x00\x00",
        b"\x01tt\x01",
        b"\x01vV",
        b"\x04textS\x00\x00\x00\x02\xc3\xa9",
        b"\x03binS\x00\x00\x00\x02\xff\xfe",
        b"\x04timeT\x00\x00\x00\x00eS\xf1\x00",
        b"\x08eternityT\x00\x03\x8d~\xa4\xc6\x7f\xff",
    )
)


LISTED = b"\x01aA\x00\x00\x00\x05I\x00\x00\x00\x01" + b"\x01fF\x00\x00\x00\x03\x01zV"
IN_LISTS = b"\x03x-aA\x00\x00\x00\x08x\x00\x00\x00\x03abc" + b"\x01bx\x00\x00\x00\x03abc"


def test_a_copy_has_the_content_of_the_message_whatever_the_tap_keeps_of_it(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="1h")
    address = address_of(vhost)
    sent = [
        b"\x20\x00" + len(headers).to_bytes(4, "big") + headers
        for headers in (LISTED, IN_LISTS, b"\x01cS\x00\x00\x00\x01d")
    ]
    sent += [b"\x00\x00", b"\x10\x00\x01", b"\x10\x00\x02", b"\x00\x04\x02cl"]
    with publisher(address, "test") as channel:
        for raw in sent:
            channel.publish(Publish("orders-retry", "orders", read_properties(raw), raw))
    record_until(topology, rows(len(sent)))
    with getter(address, "orders-retry") as source:
        waiting = [source.get() for _ in sent]
    copies = [event.content_id for event in logged(event_log)]
    assert copies == [content_of(delivery.message) for delivery in waiting if delivery]
    assert len(set(copies)) == len(sent)


def test_a_message_of_28_deaths_and_odd_headers_passes_and_is_the_same_message(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="1h")
    address = address_of(vhost)
    names = [f"step-{number}" for number in range(28)]
    with Management(address) as management:
        for name, following in zip(names, [*names[1:], ""], strict=True):
            arguments: dict[str, ArgumentValue] = {
                "x-queue-type": "classic",
                "x-message-ttl": 5,
                "x-dead-letter-exchange": "" if following else "orders-retry",
                "x-dead-letter-routing-key": following or "orders",
            }
            management.declare_queue(Queue(name, arguments=Arguments(arguments)))
    raw = b"\x30\x80" + len(ODD).to_bytes(4, "big") + ODD + b"\x02" + b"\x02m1"
    sent = read_properties(raw)
    assert not sent.problems
    with publisher(address, "test") as channel:
        channel.publish(Publish("", names[0], sent, b"body"))
    record_until(topology, rows(1))
    (event,) = logged(event_log)
    assert (event.deaths, event.death_reason, event.death_queue) == (28, "expired", names[-1])
    assert event.content_id == Message("", "", sent, b"body").content_id
    assert "é" in event.headers_json
