"""What pika does not do, or too slowly for a flood of messages: frames by hand, on its connection.

No other file touches pika's private attributes. pika takes ten times as long for a frame that
comes, most of it for copies and classes. AMQP 0-9-1 §2.3.5: a frame is its type (octet), channel
(short), length (long), payload, 206; a publish or a delivery is a method, a content header and the
frames of its body, with no other frame of the channel in between.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pika
import pika.exceptions
import pika.frame

from topology.broker.properties.read import read_properties
from topology.message import Message, Publish

FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00" + FRAME_END
_METHOD, _HEADER, _BODY = 1, 2, 3
_HEAD = struct.Struct(">BHI")
_HEADER_START = struct.Struct(">HHQ")
_BASIC_PUBLISH = b"\x00\x3c\x00\x28\x00\x00"
_BASIC_ACK = b"\x00\x3c\x00\x50"
_ACK = struct.Struct(">4sQ?")
_MANDATORY = b"\x01"
_BASIC = 60
_SHORT = 255
READ_BYTES = 64 * 1024
_DELIVER = b"\x00\x3c\x00\x3c"
_TAG = struct.Struct(">Q?")
_SIZE = struct.Struct(">Q")
# socket(7), for a stream too: tcp_recvmsg writes a control message with a timespec.
_SO_TIMESTAMPNS, _TIMESPEC, _NOTES_BYTES = 35, struct.Struct("@qq"), 64


class Unpublishable(Exception):
    """AMQP cannot carry it; a sentence."""


def publish_frames(channel: int, publish: Publish, frame_max: int) -> Iterator[bytes]:
    """A mandatory basic.publish as bytes, its body in frames of at most `frame_max` bytes.

    Raises Unpublishable.
    """
    raw, body = publish.properties.raw, publish.body
    header = _HEADER_START.pack(_BASIC, 0, len(body)) + raw
    most = frame_max - FRAME_OVERHEAD
    if len(header) > most:
        raise Unpublishable(
            f"The message's properties have {len(raw)} bytes, more than one AMQP frame can hold."
        )
    method = _publish_method(publish.exchange, publish.routing_key)
    start = _frame(_METHOD, channel, method) + _frame(_HEADER, channel, header)
    if not body:
        yield start
    elif len(body) <= most:
        yield b"".join((start, _HEAD.pack(_BODY, channel, len(body)), body, FRAME_END))
    else:
        yield start
        for place in range(0, len(body), most):
            yield _frame(_BODY, channel, body[place : place + most])


def ack_frame(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """A basic.ack of this delivery, or of it and all before it."""
    return _frame(_METHOD, channel, _ACK.pack(_BASIC_ACK, tag, multiple))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


@lru_cache(maxsize=1024)
def _publish_method(exchange: str, routing_key: str) -> bytes:
    try:
        names = (exchange.encode(), routing_key.encode())
    except UnicodeEncodeError as error:
        raise Unpublishable("The exchange name or the routing key is not valid Unicode.") from error
    if max(map(len, names)) > _SHORT:
        raise Unpublishable("The exchange name or the routing key has more than 255 bytes.")
    return _BASIC_PUBLISH + b"".join(bytes([len(n)]) + n for n in names) + _MANDATORY


def bare(channel: Any) -> Any:
    """The channel below a blocking one: it calls back at once, and confirms many publishes."""
    return channel._impl


def closing_reason(channel: Any) -> Exception:
    """Why a channel is closed, as pika's exception."""
    reason: Exception = channel._closing_reason
    return reason


def close_without_cancel(channel: Any) -> None:
    """Close a channel; pika would cancel its consumers first."""
    channel._impl._consumers.clear()
    channel._consumer_infos.clear()
    channel.close()


def largest_frame(connection: pika.BlockingConnection) -> int:
    """Bytes of a frame at most, as agreed with the broker."""
    size: int = connection._impl.params.frame_max
    return size


def note_arrivals(connection: pika.BlockingConnection) -> None:
    """Have `heard_at` know from now on when bytes came on it last, and send heartbeats by that.

    pika's own heartbeats have timers, by which hundreds of quiet connections wake twice as
    often.
    """
    bare: Any = connection._impl
    feed = bare._on_data_available

    def note(data: bytes) -> None:
        _hear(bare)
        feed(data)

    bare._remove_heartbeat()
    bare.heard_at = bare.beaten_at = time.monotonic()
    bare._on_data_available = note


def _hear(bare: Any) -> None:
    """Bytes came: send a heartbeat, unless one was just sent.

    RabbitMQ sends some at least once per heartbeat (its sender looks every half of it), and closes
    after two without any of ours at the earliest (rabbit_heartbeat.erl 3.10.8; tried on 3.10.8,
    4.0.5 and 4.3.6).
    """
    bare.heard_at = time.monotonic()
    every = bare.params.heartbeat / 6
    if every and bare.heard_at - bare.beaten_at > every and bare.is_open:
        bare.beaten_at = bare.heard_at
        _send_at_once(bare, HEARTBEAT)


def _send_at_once(bare: Any, frame: bytes) -> None:
    """Past pika, which would wait until the socket can be written, where nothing waits for that.

    What is wrong with the socket shows at the next reading.
    """
    transport, sent = bare._transport, 0
    if type(transport._sock) is socket.socket and not transport.get_write_buffer_size():
        with suppress(OSError):
            sent = transport._sock.send(frame)
    if sent < len(frame):
        bare._output_marshaled_frames([frame[sent:]])


def heard_at(connection: pika.BlockingConnection) -> float:
    """When bytes came last, in monotonic seconds; `note_arrivals` has to be called before."""
    bare: Any = connection._impl
    moment: float = bare.heard_at
    return moment


def call_later(
    connection: pika.BlockingConnection, seconds: float, act: Callable[[], None]
) -> None:
    """Call it on the loop of the connection, also while a call of pika waits."""
    connection._impl._adapter_call_later(seconds, act)


def wake(connection: pika.BlockingConnection) -> None:
    """End the waiting of the thread that is in `wait`; from any other thread."""
    connection._impl.ioloop.add_callback_threadsafe(lambda: None)


def renew_secret(connection: pika.BlockingConnection, secret: str) -> None:
    """Send RabbitMQ a new password of this connection; BlockingConnection would wait for it."""
    connection._impl.update_secret(secret, "renewed", lambda _: None)


def cut(connection: pika.BlockingConnection, why: str) -> None:
    """End it at once, as one whose peer is silent."""
    connection._impl._terminate_stream(pika.exceptions.AMQPHeartbeatTimeout(why))


def send(connection: pika.BlockingConnection, frames: bytes) -> None:
    """Hand whole frames to the connection, which sends them as the socket takes them."""
    connection._impl._output_marshaled_frames([frames])


def is_sending(connection: pika.BlockingConnection) -> bool:
    """Whether some of that is not sent yet, as over a slow network."""
    return connection._impl._get_write_buffer_size() > 0


def wait_for_any(connections: Sequence[pika.BlockingConnection], seconds: float) -> None:
    """Wait until something comes on one of them, and read nothing; not at all for a closed one."""
    poller = select.poll()
    for connection in connections:
        transport: Any = connection._impl._transport
        if transport is None or not connection.is_open:
            return
        poller.register(transport._sock, select.POLLIN)
    poller.poll(seconds * 1000)


def wait(connection: pika.BlockingConnection, seconds: float, is_ready: Callable[[], bool]) -> None:
    """Send and receive until it is ready or the time is up; at least once.

    Raises what ended the connection, pika's or the network's error.
    """
    if connection.is_closed:
        raise pika.exceptions.ConnectionWrongStateError("The connection is closed.")
    bare = connection._impl
    until = time.monotonic() + seconds
    timer = bare._adapter_call_later(seconds, lambda: None)
    while True:
        bare.ioloop.poll()
        bare.ioloop.process_timeouts()
        if connection._closed_result.ready:
            error = connection._closed_result.value.error
            connection._cleanup()
            raise error
        if is_ready() or time.monotonic() >= until:
            break
    bare._adapter_remove_timeout(timer)


class Delivery:
    """A message as it came, not acknowledged yet; `raw` are the bytes of its properties.

    `received_at` is UTC: when its bytes came to this machine, or were read. It may have waited in
    its queue before that if `has_waited`. `offset` is its place in the stream that it was read
    from, None from a queue.
    """

    __slots__ = (
        "_message",
        "body",
        "exchange",
        "has_waited",
        "offset",
        "raw",
        "received_at",
        "redelivered",
        "routing_key",
        "tag",
    )

    def __init__(
        self,
        tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        raw: bytes,
        received_at: datetime | None = None,
    ) -> None:
        self.tag = tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.raw = raw
        self.body = b""
        self.received_at = received_at or datetime.now(UTC)
        self.has_waited = False
        self.offset: int | None = None
        self._message: Message | None = None

    @property
    def message(self) -> Message:
        """The message, decoded when it is first asked for."""
        if self._message is None:
            properties = read_properties(self.raw)
            names = (self.exchange, self.routing_key)
            self._message = Message(*names, properties, self.body, self.redelivered)
        return self._message

    def mark_redelivered(self) -> None:
        """Mark the message as redelivered, as RabbitMQ does when it delivers one again."""
        self.redelivered = True
        self._message = replace(self.message, redelivered=True)


def _read_stamp(note: tuple[int, int, bytes]) -> datetime | None:
    """The time in a control message, which the kernel wrote as seconds and nanoseconds."""
    level, kind, data = note
    if (level, kind) != (socket.SOL_SOCKET, _SO_TIMESTAMPNS) or len(data) != _TIMESPEC.size:
        return None
    seconds, nanoseconds = _TIMESPEC.unpack(data)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)


MICROSECOND = timedelta(microseconds=1)
# Largest step back of the clock at which the previous time stays; a larger one is believed.
MOST_AHEAD = timedelta(milliseconds=10)


class Deliveries:
    """Takes one channel's deliveries out of a connection's bytes; pika gets all else.

    `arrived` is called for each, on the thread that reads the connection. To be made before the
    channel consumes anything; for its consumers, pika's own callbacks are never called.
    """

    def __init__(
        self, connection: pika.BlockingConnection, channel: int, arrived: Callable[[Delivery], None]
    ) -> None:
        bare: Any = connection._impl
        self._bare = bare
        self._channel = channel
        self._arrived = arrived
        self._rest: bytes = bare._frame_buffer
        self._method = b""
        self._delivery: Delivery | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        bare._frame_buffer = b""
        bare._on_data_available = self.feed
        # Each read has other threads go on, which give the interpreter back after milliseconds.
        bare._transport._MAX_RECV_BYTES = READ_BYTES
        self._came_at: datetime | None = None
        self._stamp = datetime.now(UTC)
        self._stamp_reads(bare._transport)

    def _stamp_reads(self, transport: Any) -> None:
        """Have the kernel say when bytes came, where it does (Linux, without TLS): a thread that
        waits for its turn, or parses others, reads them tens of milliseconds later.
        """
        if sys.platform != "linux" or type(transport._sock) is not socket.socket:
            return
        try:
            transport._sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return

        def read(sock: socket.socket, most: int) -> bytes:
            data, notes, _, _ = sock.recvmsg(most, _NOTES_BYTES)
            self._came_at = next(filter(None, map(_read_stamp, notes)), None)
            return data

        transport._sigint_safe_recv = read
        # pika would read until there is no more, by an error. What is left wakes it again.
        transport._MAX_CONSUME_BYTES = 1

    def feed(self, data: bytes) -> None:
        # Of bytes that are read at once it is the time of the last: no earlier one is known.
        came_at, self._came_at = self._came_at or datetime.now(UTC), None
        # Readers order messages of a queue by these times.
        is_before = timedelta(0) <= self._stamp - came_at < MOST_AHEAD
        self._stamp = self._stamp if is_before else came_at
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._bare.bytes_received += len(data)
        _hear(self._bare)
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
            is_mine = channel == self._channel and data[last] == FRAME_END[0]
            if not is_mine or not self._is_ours(kind, data, first, last):
                self._bare._process_frame(pika.frame.decode_frame(data[position:following])[1])
            position = following
        self._rest = data[position:]

    def _is_ours(self, kind: int, data: bytes, first: int, last: int) -> bool:
        """Take a frame's payload if it is a part of a delivery."""
        if kind == _BODY and self._delivery is not None:
            self._pieces.append(data[first:last])
            self._missing -= last - first
        elif kind == _HEADER and self._method:
            (self._missing,) = _SIZE.unpack_from(data, first + 4)
            # Consumer tag, delivery tag, whether redelivered, exchange, key.
            method, self._method = self._method, b""
            at = 5 + method[4]
            tag, redelivered = _TAG.unpack_from(method, at)
            named = at + _TAG.size
            keyed = named + 1 + method[named]
            exchange = method[named + 1 : keyed].decode("utf-8", "backslashreplace")
            key = method[keyed + 1 : keyed + 1 + method[keyed]].decode("utf-8", "backslashreplace")
            raw = data[first + 12 : last]
            self._stamp += MICROSECOND
            self._delivery = Delivery(tag, redelivered, exchange, key, raw, self._stamp)
        elif kind == _METHOD and data.startswith(_DELIVER, first):
            self._method = data[first:last]
            return True
        else:
            return False
        if self._missing <= 0:
            self._delivery.body = b"".join(self._pieces)
            self._pieces.clear()
            self._arrived(self._delivery)
            self._delivery = None
        return True
