"""Taps of both types after crashes: a stream's copies once each, a queue's at least once."""

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
from analytics.recorder import streams
from analytics.recorder.copies import content_of
from analytics.recorder.record import RecordingFailed, record
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import follow_log, logged
from tests.brokers import NEWEST, Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually, make_pair
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.publisher import publisher
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Arguments, ArgumentValue, Queue
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations.provision import apply
from topology.provisioning import taps
from topology.provisioning.taps import TapType

pytestmark = [pytest.mark.django_db, every_generation]
SECONDS = 30.0
SEGMENT = 100_000


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


@pytest.fixture
def tap_type(broker_node: PrivateNode) -> TapType:
    """A stream where it takes dead letters: from 4.0 on."""
    return "stream" if broker_node.version >= "4" else "classic"


def is_stream(topology: Topology) -> bool:
    return topology.tap_type == "stream"


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
    "before the place is written down": lambda patched: patched.setattr(
        streams, "advance", crash_after(streams.advance)
    ),
    "before the ack": lambda patched: patched.setattr(Consumer, "ack_through", crash),
    "after the ack": lambda patched: patched.setattr(
        Consumer, "ack_through", crash_after(Consumer.ack_through)
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_no_copy_and_a_stream_repeats_none(
    vhost: Vhost, tap_type: TapType, event_log: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    delay(vhost, 5, 9)
    if step == "before the place is written down" and not is_stream(topology):
        step = "in the index's transaction"
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
    if is_stream(topology):
        assert set(recorded.values()) == {1}
        assert not again
        assert len({event.event_id for event in logged(event_log)}) == 13


@pytest.mark.generations(NEWEST, only=True)
@pytest.mark.parametrize("step", ["after the log", "before the ack"])
def test_a_crash_loses_no_copy_of_a_classic_tap_on_a_new_broker(
    vhost: Vhost, event_log: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    test_a_crash_at_any_step_loses_no_copy_and_a_stream_repeats_none(
        vhost, "classic", event_log, monkeypatch, step
    )


def test_a_tap_is_classic_unless_somebody_chose_a_stream(vhost: Vhost, event_log: Path) -> None:
    topology = applied_pair(vhost, delay="1h")
    chosen = make_pair(topology.broker, name="invoices", tap_type="stream")
    apply(None, chosen)
    with Management(address_of(vhost)) as management:
        types = [management.queue(one.tap_queue)["type"] for one in (topology, chosen)]
    assert types == ["classic", "stream"]
    delay(vhost, 0, 0)
    assert record_until(topology, rows(1))["tap"] == "classic"


def declare_anew(vhost: Vhost, topology: Topology) -> None:
    with Management(address_of(vhost)) as management:
        management.delete_queue(topology.tap_queue, only_if_empty=False)
    apply(None, topology)


@pytest.mark.parametrize("before", [0, 3, 8])
def test_a_tap_that_was_declared_anew_is_read_from_its_beginning_and_leaves_a_gap(
    vhost: Vhost, tap_type: TapType, event_log: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Nobody saw it go: the new one has fewer copies than were read, as many, or more."""
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 1.0)
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    declare_anew(vhost, topology)
    delay(vhost, 100, 99 + before)
    if is_stream(topology):
        late = [] if before else [200]

        def go_on() -> bool:
            for number in late:
                delay(vhost, number, number + 1)
            late.clear()
            return False

        with pytest.raises(RecordingFailed, match=r"recreated.*from its beginning"):
            record_until(topology, go_on)
        (gap,) = Gap.objects.all()
        assert gap.at_most is None
        assert "was recreated or truncated" in gap.why
    elif not before:
        delay(vhost, 200, 201)
    expected = 5 + (before or 2)
    record_until(topology, rows(expected))
    recorded = Counter(event.message_id for event in logged(event_log))
    assert (len(recorded), set(recorded.values())) == (expected, {1})
    assert len({event.event_id for event in logged(event_log)}) == expected


def test_a_tap_that_goes_while_it_is_read_and_comes_back(
    vhost: Vhost, tap_type: TapType, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
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


def test_what_a_full_tap_dropped_is_a_gap_and_a_stream_says_how_many(
    vhost: Vhost, tap_type: TapType, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in taps.ARGUMENTS.values():
        monkeypatch.setitem(arguments, "x-max-length-bytes", 3 * SEGMENT)
    segment = "x-stream-max-segment-size-bytes"
    monkeypatch.setitem(taps.ARGUMENTS["stream"], segment, SEGMENT)
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
    delay(vhost, 0, 4)
    record_until(topology, rows(5))
    published = 2000
    delay(vhost, 5, 4 + published, b"x" * 500)
    if not is_stream(topology):
        with Management(address_of(vhost)) as management:
            eventually(
                lambda: (
                    management.queue(topology.tap_queue).get("message_bytes", 0) > 2.8 * SEGMENT
                ),
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
    if is_stream(topology):
        # Every segment takes an offset for itself.
        assert gap.at_most is not None
        assert lost <= gap.at_most <= lost + published * 500 // SEGMENT + 1
    else:
        assert "full" in gap.why


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
    vhost: Vhost, tap_type: TapType, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
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
    vhost: Vhost, tap_type: TapType, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="1h", tap_type=tap_type)
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
    assert "x-stream-offset" not in event.headers_json
    assert "é" in event.headers_json
