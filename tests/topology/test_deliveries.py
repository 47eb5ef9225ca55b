from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any

import pika.exceptions
import pika.frame
import pika.spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.broker.amqp.frames import Deliveries, Delivery

CHANNEL = 3
FRAME_MAX = 40

texts = st.text(max_size=20).filter(lambda text: len(text.encode()) < 256)
messages = st.tuples(
    st.integers(1, 2**63),
    st.booleans(),
    texts,
    texts,
    st.binary(max_size=30),
    st.binary(max_size=99),
)


class Bare:
    """What of pika's connection is used; `frames` are those that it is left with."""

    def __init__(self) -> None:
        self._frame_buffer = b""
        self._transport = SimpleNamespace(_sock=None)
        self.bytes_received = 0
        # No heartbeat is due.
        self.beaten_at, self.params = math.inf, SimpleNamespace(heartbeat=6)
        self.frames: list[Any] = []

    def _process_frame(self, frame: Any) -> None:
        self.frames.append(frame)


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def delivery(message: tuple[int, bool, str, str, bytes, bytes], channel: int = CHANNEL) -> bytes:
    tag, redelivered, exchange, key, raw, body = message
    method = pika.spec.Basic.Deliver("ctag", tag, redelivered, exchange, key)
    header = frame(2, struct.pack(">HHQ", 60, 0, len(body)) + raw, channel)
    pieces = [body[at : at + FRAME_MAX] for at in range(0, len(body), FRAME_MAX)]
    bodies = b"".join(frame(3, piece, channel) for piece in pieces)
    return pika.frame.Method(channel, method).marshal() + header + bodies


def reading(bare: Bare) -> list[Delivery]:
    """What arrives is put into the list."""
    come: list[Delivery] = []
    Deliveries(SimpleNamespace(_impl=bare), CHANNEL, come.append)  # type: ignore[arg-type]
    return come


@given(st.lists(messages, max_size=6), st.data())
def test_all_that_comes_is_read_however_it_is_cut(sent: list[Any], data: st.DataObject) -> None:
    flow = b"".join(delivery(one) + frame(8, b"", 0) for one in sent)
    bare = Bare()
    come = reading(bare)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(flow)), max_size=9)))
    for start, end in zip([0, *cuts], [*cuts, len(flow)], strict=True):
        bare._on_data_available(flow[start:end])  # type: ignore[attr-defined]
    assert [(a.tag, a.redelivered, a.exchange, a.routing_key, a.raw, a.body) for a in come] == sent
    # Also of those that came in one read, the times are in the order of the queue.
    times = [one.received_at for one in come]
    assert times == sorted(set(times))
    assert [type(one) for one in bare.frames] == [pika.frame.Heartbeat] * len(sent)
    assert bare.bytes_received == len(flow)


def test_other_channels_and_methods_are_left_to_pika() -> None:
    bare = Bare()
    bare._frame_buffer = delivery((1, False, "e", "k", b"\0\0", b"of another"), channel=1)[:9]
    come = reading(bare)
    rest = delivery((1, False, "e", "k", b"\0\0", b"of another"), channel=1)[9:]
    ok = pika.frame.Method(CHANNEL, pika.spec.Basic.CancelOk("ctag")).marshal()
    bare._on_data_available(rest + ok)  # type: ignore[attr-defined]
    assert not come
    assert [one.channel_number for one in bare.frames] == [1, 1, 1, CHANNEL]


def test_a_name_that_is_no_text_is_shown_escaped() -> None:
    bare = Bare()
    come = reading(bare)
    flow = delivery((1, False, "e", "kk", b"\0\0", b"")).replace(b"\x02kk", b"\x02k\xff")
    bare._on_data_available(flow)  # type: ignore[attr-defined]
    assert (come[0].routing_key, come[0].body) == ("k\\xff", b"")


def test_what_is_no_frame_ends_the_connection() -> None:
    bare = Bare()
    come = reading(bare)
    flow = delivery((1, False, "e", "k", b"\0\0", b"body"))
    with pytest.raises(pika.exceptions.InvalidFrameError):
        bare._on_data_available(flow[:-1] + b"x")  # type: ignore[attr-defined]
    assert not come
