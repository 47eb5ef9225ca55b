from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer, take_offset
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Unreachable
from topology.broker.properties.read import build_properties, read_properties
from topology.message import content_id

OFFSET = b"\x0fx-stream-offsetl" + struct.pack(">q", 7_000_000_000)


def test_the_offset_is_taken_out_of_the_headers() -> None:
    whole = build_properties(headers={"a": 1, "x-stream-offset": 3}, message_id="m")
    assert take_offset(whole) == 3
    assert whole.headers == {"a": 1}
    same = build_properties(headers={"a": 1}, message_id="m")
    assert content_id(whole, b"") == content_id(same, b"")


def test_an_offset_is_found_among_headers_that_cannot_be_read() -> None:
    unreadable = b"\x01a?"
    headers = unreadable + OFFSET
    raw = b"\x20\x00" + struct.pack(">I", len(headers)) + headers
    properties = read_properties(raw)
    assert properties.problems
    assert take_offset(properties) == 7_000_000_000


@pytest.mark.parametrize("headers", [{}, {"a": 1}, {"x-stream-offset": "7"}])
def test_a_message_without_an_offset_is_none_of_a_stream(headers: dict[str, object]) -> None:
    with pytest.raises(Unreachable, match="has no offset"):
        take_offset(build_properties(headers=headers))


def test_what_is_asked_just_before_the_end_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    consumer = Consumer(Address("broker.test", 5672, "/", "u", "p"), "q")
    monkeypatch.setattr(consumer, "_session", nullcontext())

    def read(seconds: float, is_ready: object) -> None:
        if consumer._stopping.is_set():
            done.append("read")

    def ask_and_stop() -> bool:
        """Between the last look at what is asked and the one at whether it shall stop."""
        consumer._asked.put(lambda: done.append("asked"))
        consumer._stopping.set()
        return True

    class Asked(SimpleQueue[Callable[[], object]]):
        def empty(self) -> bool:
            return super().empty() and (consumer._stopping.is_set() or ask_and_stop())

    monkeypatch.setattr(consumer, "_read", read)
    consumer._asked = Asked()
    consumer._run()
    assert consumer._end is None
    assert done == ["asked", "read"]


def test_what_left_the_queue_before_it_was_empty_has_waited_though_an_answer_overtakes_it() -> None:
    """As the channel's process of RabbitMQ sent it in some of 75 runs on 3.10.8."""
    consumer = Consumer(Address("broker.test", 5672, "/", "u", "p"), "q", in_thread=False)
    overtaken, later = (Delivery(tag, False, "", "q", b"\x00\x00") for tag in (1, 2))
    on_their_way = [[], [overtaken]]

    class Channel:
        def queue_declare(self, queue: str, *, passive: bool) -> Any:
            for delivery in on_their_way.pop(0):
                consumer._on_arrival(delivery)
            return SimpleNamespace(method=SimpleNamespace(message_count=0))

    consumer._channel = Channel()
    consumer.find_backlog()
    consumer._on_arrival(later)
    assert (overtaken.has_waited, later.has_waited) == (True, False)
    assert not consumer.is_caught_up
    consumer._come.popleft()
    assert consumer.is_caught_up


def test_what_came_while_the_process_was_stopped_and_what_comes_then_has_waited() -> None:
    consumer = Consumer(Address("broker.test", 5672, "/", "u", "p"), "q", in_thread=False)
    consumer.has_backlog = False
    taken, came, comes = (Delivery(tag, False, "", "q", b"\x00\x00") for tag in (1, 2, 3))
    consumer._on_arrival(taken)
    consumer._come.popleft()
    consumer._on_arrival(came)
    consumer.doubt([taken])
    consumer._on_arrival(comes)
    consumer.has_backlog = False
    assert not consumer.is_caught_up
    consumer._thread = Thread()
    assert consumer.batch(limit=2, wait=0, linger=0) == [came, comes]
    assert all(one.has_waited for one in (taken, came, comes))
    assert consumer.is_caught_up


def test_a_stream_is_not_asked_whether_it_is_empty() -> None:
    address = Address("broker.test", 5672, "/", "u", "p")
    consumer = Consumer(address, "q", in_thread=False, start="first")
    asked: list[str] = []
    consumer._channel = SimpleNamespace(queue_declare=lambda queue, **_: asked.append(queue))
    consumer.find_backlog()
    assert consumer.has_backlog
    assert not asked
