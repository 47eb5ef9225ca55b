"""A queue consumed on the caller's own thread, fast: what pika decodes slowly is read by hand.

`consumer.Consumer` stamps each message on a thread of its own; here nothing but the number of
messages a second counts, and that an ack goes out for many at once.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pika
import pika.frame

from topology.broker.address import Address
from topology.broker.amqp import connected, translated
from topology.broker.errors import NotFound
from topology.broker.properties import read_properties
from topology.broker.wire import ack_frame, send, wait
from topology.message import Message

_HEAD = struct.Struct(">BHI")
_DELIVER = b"\x00\x3c\x00\x3c"
_TAG = struct.Struct(">Q?")
_SIZE = struct.Struct(">Q")
# What is read and not taken yet holds at most so many bytes, and one message more.
BUFFERED = 8_000_000
READ_BYTES = 64 * 1024


class Arrival:
    """A delivery that is not acknowledged; it is decoded where that is asked for."""

    def __init__(
        self, tag: int, redelivered: bool, exchange: bytes, routing_key: bytes, raw: bytes
    ) -> None:
        self.tag = tag
        self.redelivered = redelivered
        self._exchange = exchange
        self._routing_key = routing_key
        self.raw = raw
        self.body = b""

    @cached_property
    def message(self) -> Message:
        return Message(
            self._exchange.decode("utf-8", "backslashreplace"),
            self._routing_key.decode("utf-8", "backslashreplace"),
            read_properties(self.raw),
            self.body,
            self.redelivered,
        )


class _Frames:
    """Takes the deliveries of one channel out of a connection's bytes; pika gets the rest."""

    def __init__(
        self, connection: pika.BlockingConnection, channel: int, arrived: Callable[[Arrival], None]
    ) -> None:
        bare: Any = connection._impl
        self._bare = bare
        self._channel = channel
        self._arrived = arrived
        self._rest: bytes = self._bare._frame_buffer
        self._method = b""
        self._arrival: Arrival | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self._bare._frame_buffer = b""
        self._bare._on_data_available = self.feed
        self._bare._transport._MAX_RECV_BYTES = READ_BYTES

    def feed(self, data: bytes) -> None:
        """What came from the socket."""
        self._bare.bytes_received += len(data)
        data = self._rest + data if self._rest else data
        position, end = 0, len(data)
        while end - position >= 7:
            kind, channel, size = _HEAD.unpack_from(data, position)
            following = position + size + 8
            if following > end:
                break
            first = position + 7
            if channel != self._channel or not self._is_ours(kind, data, first, following - 1):
                self._hand_over(data[position:following])
            position = following
        self._rest = data[position:]

    def _is_ours(self, kind: int, data: bytes, first: int, last: int) -> bool:
        """Take a frame's payload if it is a part of a delivery."""
        if kind == 3 and self._arrival is not None:
            self._pieces.append(data[first:last])
            self._missing -= last - first
            self._complete()
        elif kind == 2 and self._method:
            self._begin(data, first, last)
            self._complete()
        elif kind == 1 and data[first : first + 4] == _DELIVER:
            self._method = data[first:last]
        else:
            return False
        return True

    def _begin(self, data: bytes, first: int, last: int) -> None:
        """Of the content header are left out: class, weight, size."""
        method = self._method
        at = 5 + method[4]
        tag, redelivered = _TAG.unpack_from(method, at)
        at += _TAG.size
        key_at = at + 1 + method[at]
        exchange = method[at + 1 : key_at]
        key = method[key_at + 1 : key_at + 1 + method[key_at]]
        self._arrival = Arrival(tag, redelivered, exchange, key, data[first + 12 : last])
        (self._missing,) = _SIZE.unpack_from(data, first + 4)
        self._method = b""

    def _complete(self) -> None:
        if self._missing <= 0 and self._arrival is not None:
            self._arrival.body = b"".join(self._pieces)
            self._arrived(self._arrival)
            self._arrival = None
            self._pieces.clear()

    def _hand_over(self, frame: bytes) -> None:
        self._bare._process_frame(pika.frame.decode_frame(frame)[1])


class Intake:
    """Consumes one queue with manual acks, `prefetch` at once; one thread at a time."""

    def __init__(
        self, connection: pika.BlockingConnection, address: Address, queue: str, prefetch: int
    ) -> None:
        self._connection = connection
        self._address = address
        self._queue = queue
        self._come: deque[Arrival] = deque()
        self._bytes = 0
        self._is_deleted = False
        self._channel: Any = connection.channel()
        self._bare: Any = self._channel._impl
        self._number: int = self._bare.channel_number
        self._bare.add_on_cancel_callback(self._on_cancel)
        _Frames(connection, self._number, self._on_arrival)
        self._channel.basic_qos(prefetch_count=prefetch)
        self._consume()

    def arrivals(self, room: int, seconds: float) -> Iterator[Arrival]:
        """At most `room` of what has come; waits up to that long for the first.

        Raises BrokerError when the connection is broken or the queue is gone.
        """
        if self._bytes < BUFFERED:
            with translated(self._address):
                wait(self._connection, 0.0 if self._come else seconds, self._has_news)
                self._look()
        for _ in range(min(room, len(self._come))):
            arrival = self._come.popleft()
            self._bytes -= len(arrival.body)
            yield arrival

    def ack(self, tags: Iterable[int], *, through: int = 0) -> None:
        """Acknowledge these, and all through `through`; it is sent at the next `arrivals`."""
        frames = [ack_frame(self._number, through, multiple=True)] if through else []
        frames += [ack_frame(self._number, tag) for tag in tags]
        if self._bare.is_open:
            send(self._connection, b"".join(frames))

    def more(self) -> None:
        """Let as many come again as the prefetch says, whatever is not acknowledged."""
        with translated(self._address):
            self._channel.basic_cancel(self._consumer)
            self._consume()

    def depth(self) -> int:
        """How many are ready in the queue, besides what was sent to us."""
        with translated(self._address):
            declared = self._channel.queue_declare(self._queue, passive=True)
        return int(declared.method.message_count)

    def give_back(self) -> None:
        """Consume no more, put back by nack what is not acknowledged, and wait for it.

        On quorum queues of 4.3 a close counts as a failed delivery, a nack does not.
        """
        if not self._channel.is_open or self._is_deleted:
            return
        self._channel.basic_cancel(self._consumer)
        self._channel.basic_nack(0, multiple=True, requeue=True)
        self._channel.queue_declare(self._queue, passive=True)

    def _consume(self) -> None:
        self._consumer = self._channel.basic_consume(self._queue, lambda *_: None)

    def _has_news(self) -> bool:
        return bool(self._come) or self._is_deleted or not self._bare.is_open

    def _look(self) -> None:
        if self._is_deleted:
            raise NotFound(f"The queue “{self._queue}” was deleted.")
        if not self._bare.is_open and self._connection.is_open:
            raise self._channel._closing_reason

    def _on_arrival(self, arrival: Arrival) -> None:
        self._come.append(arrival)
        self._bytes += len(arrival.body)

    def _on_cancel(self, frame: Any) -> None:
        self._is_deleted = True


@contextmanager
def intake(address: Address, queue: str, *, prefetch: int) -> Iterator[Intake]:
    """Consume a queue for the length of a block; what is not acknowledged goes back.

    Raises BrokerError.
    """
    with connected(address, f"intake of {queue}") as connection:
        taking = Intake(connection, address, queue, prefetch)
        try:
            yield taking
        finally:
            if connection.is_open:
                taking.give_back()
