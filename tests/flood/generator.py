"""Publishing at a pace that costs nearly nothing: frames made once, numbers put in between.

No client library is involved beyond the handshake's frames, nothing is confirmed, and the
broker holds the sender up by no more than TCP. Closing the channel is answered when all was routed.
"""

from __future__ import annotations

import socket
import struct
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pika.frame
import pika.spec

from topology.broker.address import Address
from topology.broker.properties.read import build_properties

BURST = 100
CHANNEL = 1
DIGITS = 8
PLACE = b"#" * DIGITS
BODY_BYTES = 128
FRAME_END = b"\xce"
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 120.0


class FloodError(Exception):
    """The broker would not take it; the message says what it said."""


def message_id(number: int) -> str:
    """Of the message with this number, from 0 on: its burst and its place in it."""
    return f"flood-{number // BURST:0{DIGITS}}-{number % BURST:03}"


def number_of(message_id: str) -> int:
    """The inverse of `message_id`. Raises ValueError for what is none of ours."""
    _, burst, place = message_id.split("-")
    return int(burst) * BURST + int(place)


def burst_pieces(exchange: str, routing_key: str) -> list[bytes]:
    """The frames of a burst, cut where the number of the burst belongs."""
    frames = b""
    for place in range(BURST):
        properties = build_properties(
            message_id=f"flood-{PLACE.decode()}-{place:03}", delivery_mode=1
        )
        frames += _publish(exchange, routing_key, properties.raw, b"x" * BODY_BYTES)
    return frames.split(PLACE)


@dataclass
class Flood(Thread):
    """Offers `rate` messages a second for `seconds`; what could not be sent in time follows."""

    address: Address
    exchange: str
    routing_key: str
    rate: float
    seconds: float
    error: BaseException | None = None
    cpu_seconds: float = 0.0
    took_seconds: float = 0.0
    _sent_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    @property
    def sent(self) -> int:
        """How many messages were given to the broker so far."""
        return len(self._sent_at) * BURST

    def lag(self, recorded: int) -> float:
        """For how many seconds the first message that was not recorded has been sent."""
        burst = recorded // BURST
        return time.monotonic() - self._sent_at[burst] if burst < len(self._sent_at) else 0.0

    def sent_by(self, moment: float) -> int:
        """How many messages had been sent at that moment of the monotonic clock."""
        return bisect_right(self._sent_at, moment) * BURST

    def run(self) -> None:
        began, cpu = time.monotonic(), time.thread_time()
        try:
            with _opened(self.address) as connection:
                self._send(connection, began)
                _close(connection)
        except BaseException as error:
            self.error = error
        self.took_seconds = time.monotonic() - began
        self.cpu_seconds = time.thread_time() - cpu

    def _send(self, connection: socket.socket, began: float) -> None:
        pieces = burst_pieces(self.exchange, self.routing_key)
        for burst in range(round(self.rate * self.seconds / BURST)):
            time.sleep(max(0.0, began + burst * BURST / self.rate - time.monotonic()))
            connection.sendall((b"%0*d" % (DIGITS, burst)).join(pieces))
            self._sent_at.append(time.monotonic())


def _publish(exchange: str, routing_key: str, properties: bytes, body: bytes) -> bytes:
    method = pika.spec.Basic.Publish(exchange=exchange, routing_key=routing_key)
    header = struct.pack(">HHQ", pika.spec.Basic.INDEX, 0, len(body)) + properties
    return b"".join(
        (
            pika.frame.Method(CHANNEL, method).marshal(),
            _frame(pika.spec.FRAME_HEADER, header),
            _frame(pika.spec.FRAME_BODY, body),
        )
    )


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, CHANNEL, len(payload)) + payload + FRAME_END


def _opened(address: Address) -> socket.socket:
    """A connection with channel 1 open and no heartbeats. Raises FloodError, OSError."""
    connection = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(pika.frame.ProtocolHeader().marshal())
    _expect(connection, pika.spec.Connection.Start)
    response = f"\0{address.username}\0{address.password}".encode()
    _say(connection, 0, pika.spec.Connection.StartOk({}, "PLAIN", response, "en_US"))
    tune = _expect(connection, pika.spec.Connection.Tune)
    _say(connection, 0, pika.spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
    _say(connection, 0, pika.spec.Connection.Open(virtual_host=address.vhost))
    _expect(connection, pika.spec.Connection.OpenOk)
    _say(connection, CHANNEL, pika.spec.Channel.Open())
    _expect(connection, pika.spec.Channel.OpenOk)
    connection.settimeout(None)
    return connection


def _close(connection: socket.socket) -> None:
    """Return when the broker has routed all. Raises FloodError."""
    connection.settimeout(CLOSE_SECONDS)
    _say(connection, CHANNEL, pika.spec.Channel.Close(200, "", 0, 0))
    _expect(connection, pika.spec.Channel.CloseOk)


def _say(connection: socket.socket, channel: int, method: Any) -> None:
    connection.sendall(pika.frame.Method(channel, method).marshal())


def _expect(connection: socket.socket, wanted: type) -> Any:
    """The next method, which must be this one; what the broker says of flow and alarms aside."""
    while True:
        kind, _, size = struct.unpack(">BHI", _exactly(connection, 7))
        payload = _exactly(connection, size + 1)[:-1]
        if kind != pika.spec.FRAME_METHOD:
            continue
        (index,) = struct.unpack(">I", payload[:4])
        said = pika.spec.methods[index]()
        said.decode(payload, 4)
        if isinstance(said, wanted):
            return said
        if isinstance(said, (pika.spec.Connection.Close, pika.spec.Channel.Close)):
            raise FloodError(f"The broker closed: {said.reply_code} {said.reply_text}.")


def _exactly(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        piece = connection.recv(size - len(read))
        if not piece:
            raise FloodError("The broker cut the connection.")
        read += piece
    return read
