"""The deliveries of a channel, read by hand from its connection's bytes.

pika takes ten times as long for a frame, most of it for copies and classes. AMQP 0-9-1 §2.3.5: a
frame is its type (octet), channel (short), length (long), payload, 206; a delivery is a method,
a content header and the frames of its body, with no other frame of the channel in between.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pika
import pika.frame

from topology.broker.properties.read import read_properties
from topology.message import Message

READ_BYTES = 64 * 1024
_HEAD = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_END = 206
_DELIVER = b"\x00\x3c\x00\x3c"
_TAG = struct.Struct(">Q?")
_SIZE = struct.Struct(">Q")


class Arrival:
    """A message as it came, not looked into; `raw` are the bytes of its properties."""

    __slots__ = ("body", "exchange", "raw", "redelivered", "routing_key", "tag")

    def __init__(
        self, tag: int, redelivered: bool, exchange: str, routing_key: str, raw: bytes
    ) -> None:
        self.tag = tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.raw = raw
        self.body = b""

    @property
    def message(self) -> Message:
        """The message, decoded again at each access."""
        properties = read_properties(self.raw)
        return Message(self.exchange, self.routing_key, properties, self.body, self.redelivered)


class Deliveries:
    """Takes one channel's deliveries out of a connection's bytes; pika gets all else.

    `arrived` is called for each, on the thread that reads the connection. To be made before the
    channel consumes anything; for its consumers, pika's own callbacks are never called.
    """

    def __init__(
        self, connection: pika.BlockingConnection, channel: int, arrived: Callable[[Arrival], None]
    ) -> None:
        bare: Any = connection._impl
        self._bare = bare
        self._channel = channel
        self._arrived = arrived
        self._rest: bytes = bare._frame_buffer
        self._method = b""
        self._arrival: Arrival | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        bare._frame_buffer = b""
        bare._on_data_available = self.feed
        # Each read has other threads go on, which give the interpreter back after milliseconds.
        bare._transport._MAX_RECV_BYTES = READ_BYTES

    def feed(self, data: bytes) -> None:
        """What came from the socket."""
        self._bare.bytes_received += len(data)
        data = self._rest + data if self._rest else data
        # What follows a frame that pika raises for is its business no more.
        self._rest = b""
        position, end = 0, len(data)
        while end - position >= _HEAD.size:
            kind, channel, size = _HEAD.unpack_from(data, position)
            first = position + _HEAD.size
            following = first + size + 1
            if following > end:
                break
            last = following - 1
            is_mine = channel == self._channel and data[last] == _FRAME_END
            if not is_mine or not self._is_ours(kind, data, first, last):
                self._bare._process_frame(pika.frame.decode_frame(data[position:following])[1])
            position = following
        self._rest = data[position:]

    def _is_ours(self, kind: int, data: bytes, first: int, last: int) -> bool:
        """Take a frame's payload if it is a part of a delivery."""
        if kind == _BODY and self._arrival is not None:
            self._pieces.append(data[first:last])
            self._missing -= last - first
        elif kind == _HEADER and self._method:
            (self._missing,) = _SIZE.unpack_from(data, first + 4)
            self._arrival = _begin_arrival(self._method, data[first + 12 : last])
            self._method = b""
        elif kind == _METHOD and data.startswith(_DELIVER, first):
            self._method = data[first:last]
            return True
        else:
            return False
        if self._missing <= 0:
            self._arrival.body = b"".join(self._pieces)
            self._pieces.clear()
            self._arrived(self._arrival)
            self._arrival = None
        return True


def _begin_arrival(method: bytes, raw: bytes) -> Arrival:
    """Without its body: consumer tag, delivery tag, whether redelivered, exchange, key."""
    at = 5 + method[4]
    tag, redelivered = _TAG.unpack_from(method, at)
    named = at + _TAG.size
    keyed = named + 1 + method[named]
    exchange = method[named + 1 : keyed].decode("utf-8", "backslashreplace")
    key = method[keyed + 1 : keyed + 1 + method[keyed]].decode("utf-8", "backslashreplace")
    return Arrival(tag, redelivered, exchange, key, raw)
