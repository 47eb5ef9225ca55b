"""What pika does too slowly for a flood of messages, on its own connection: frames by hand.

AMQP 0-9-1 §2.3.5: a frame is its type (octet), channel (short), length (long), payload, 206.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pika
import pika.exceptions

from topology.message import Publish

FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
_METHOD, _HEADER, _BODY = 1, 2, 3
_HEAD = struct.Struct(">BHI")
_HEADER_START = struct.Struct(">HHQ")
_BASIC_PUBLISH = b"\x00\x3c\x00\x28\x00\x00"
_BASIC_ACK = b"\x00\x3c\x00\x50"
_ACK = struct.Struct(">4sQ?")
_MANDATORY = b"\x01"
_BASIC = 60
_SHORT = 255


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


def send(connection: pika.BlockingConnection, frames: bytes) -> None:
    """Hand whole frames to the connection, which sends them as the socket takes them."""
    connection._impl._output_marshaled_frames([frames])


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
