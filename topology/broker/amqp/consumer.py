"""Taking messages from a queue: in batches with manual acks, or one look that puts all back.

A stream is read over AMQP 0-9-1 like a queue, from an offset on: an ack takes nothing out of
it and only lets the next messages come (rabbit_stream_queue.erl 4.0.5, 4.3.6).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeAlias, cast

import pika

from topology.broker.address import Address
from topology.broker.amqp.connection import HEARTBEAT_SECONDS, open_connection, translate_errors
from topology.broker.amqp.depths import ready_messages
from topology.broker.amqp.frames import Arrival, Deliveries
from topology.broker.errors import BrokerError, NotFound, Unreachable
from topology.broker.properties.read import read_properties
from topology.message import Message, Properties

CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 5.0
OFFSET_HEADER = "x-stream-offset"
_OFFSET_ENTRY = bytes([len(OFFSET_HEADER)]) + OFFSET_HEADER.encode() + b"l"

Start: TypeAlias = int | Literal["first", "last"]


@dataclass(frozen=True)
class Delivery:
    """A message that is not acknowledged yet, its delivery tag and when it came (UTC).

    `offset` is its place in the stream that it was read from, None from a queue.
    """

    message: Message
    tag: int
    received_at: datetime
    offset: int | None = None


class Consumer:
    """Consumes one queue on a connection and thread of its own.

    The thread stamps each message on arrival and sends heartbeats, even while the caller processes
    the last batch. Leaving the block closes the connection, and RabbitMQ requeues all messages
    without an ack.

    A stream is read from `start`: an offset, its first message, or the first of its last chunk. The
    consumer waits for an offset that does not exist yet. Messages that retention removed are
    visible only as a jump of the offsets.
    """

    def __init__(
        self, address: Address, queue: str, *, prefetch: int = 500, start: Start | None = None
    ) -> None:
        self._address = address
        self._queue = queue
        self._prefetch = prefetch
        self._start = start
        self._come: deque[tuple[datetime, Arrival]] = deque()
        self._news = threading.Event()
        self._wanted = 1
        self._end: BaseException | None = None
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._connection: pika.BlockingConnection | None = None
        self._tag = ""
        self._thread = threading.Thread(target=self._run, name=f"consumer of {queue}", daemon=True)

    def __enter__(self) -> Consumer:
        self._thread.start()
        error = self._ready.get()
        if error is not None:
            raise error
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with suppress(BrokerError):
            self._run_in_thread(lambda channel: None)
        self._thread.join(CLOSE_SECONDS)

    def batch(
        self, *, limit: int, limit_bytes: int, wait: float, linger: float = 0.2
    ) -> list[Delivery]:
        """Wait up to `wait` seconds for a message, then collect up to a limit or until `linger`.

        Empty when none came. Raises BrokerError when the connection or the queue no longer exists.
        """
        self._await(1, wait)
        if not self._come:
            if self._end is not None:
                raise self._end
            return []
        self._await(limit, linger)
        taken: list[Delivery] = []
        size = 0
        while self._come and len(taken) < limit:
            at, arrival = self._come[0]
            size += len(arrival.body)
            if taken and size > limit_bytes:
                break
            self._come.popleft()
            message = arrival.message
            offset = None if self._start is None else take_offset(message.properties)
            taken.append(Delivery(message, arrival.tag, at, offset))
        return taken

    def ack_through(self, delivery: Delivery) -> None:
        """Acknowledge this delivery and all before it. Raises BrokerError."""
        self._run_in_thread(lambda channel: channel.basic_ack(delivery.tag, multiple=True))

    def reject(self, delivery: Delivery, *, requeue: bool = False) -> None:
        """Refuse this delivery for good: it dies, with the reason `rejected`.

        With `requeue` it goes back into its queue instead, as one that failed there.
        """
        self._run_in_thread(lambda channel: channel.basic_reject(delivery.tag, requeue=requeue))

    def confirm_acks(self) -> None:
        """Wait until the broker has got every ack so far. Raises BrokerError.

        The channel's process handles in order what it is sent, and the queue's what that sends
        on: an answer that came by way of both comes after the acks (rabbit_channel.erl 3.10.8,
        4.3.5). What a broker that is killed had not yet written down comes again all the same.
        """
        self._call(lambda channel: channel.queue_declare(self._queue, passive=True))

    def finish(self, last: Delivery | None = None) -> None:
        """Consume no more, acknowledge through `last`, put the rest back by nack, and wait for it.

        Nothing comes in place of what is acknowledged. Raises BrokerError.
        """

        def act(channel: Any) -> None:
            channel.basic_cancel(self._tag)
            if last is not None:
                channel.basic_ack(last.tag, multiple=True)
            channel.basic_nack(0, multiple=True, requeue=True)
            channel.queue_declare(self._queue, passive=True)

        self._call(act)

    def _call(self, act: Callable[[Any], None]) -> None:
        """Act on the channel in the connection's thread, and wait for its end."""
        ends: SimpleQueue[BaseException | None] = SimpleQueue()

        def run(channel: Any) -> None:
            try:
                with translate_errors(self._address):
                    act(channel)
            except BaseException as error:
                ends.put(error)
                raise
            ends.put(None)

        self._run_in_thread(run)
        until = time.monotonic() + ANSWER_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:
            with suppress(Empty):
                if error := ends.get(timeout=0.1):
                    raise error
                return
        raise self._end or Unreachable(f"RabbitMQ does not answer about the queue “{self._queue}”.")

    def _await(self, number: int, seconds: float) -> None:
        """Wait until so many have come, or the time is up.

        Nobody is woken for each message: two threads that take turns at that spend more on
        their turns than on the messages.
        """
        until = time.monotonic() + seconds
        self._wanted = number
        while len(self._come) < number and self._end is None:
            self._news.clear()
            if len(self._come) >= number or not self._news.wait(until - time.monotonic()):
                return

    def _run_in_thread(self, act: Callable[[Any], None]) -> None:
        """Have the connection's thread act on the channel."""
        if self._connection is None or not self._thread.is_alive():
            raise Unreachable(f"The connection of the consumer of “{self._queue}” closed.")
        with translate_errors(self._address):
            self._connection.add_callback_threadsafe(lambda: act(self._channel))

    def _run(self) -> None:
        try:
            with open_connection(self._address, f"consumer of {self._queue}") as connection:
                self._open(connection)
                self._ready.put(None)
                while not self._stopping.is_set():
                    connection.process_data_events(HEARTBEAT_SECONDS)
                # The acks and rejects that were asked for before the end.
                connection.process_data_events(0)
        except BaseException as error:
            # Whatever the error is, the caller that waits for this thread must get it.
            self._ready.put(error)
            self._end_with(error)

    def _open(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._channel.add_on_cancel_callback(self._on_cancel)
        arguments = None if self._start is None else {OFFSET_HEADER: self._start}
        Deliveries(connection, self._channel.channel_number, self._on_arrival)
        self._tag = self._channel.basic_consume(
            self._queue, lambda *delivery: None, arguments=arguments
        )

    def _on_arrival(self, arrival: Arrival) -> None:
        self._come.append((datetime.now(UTC), arrival))
        if len(self._come) >= self._wanted:
            self._news.set()

    def _on_cancel(self, frame: Any) -> None:
        self._end_with(NotFound(f"The queue “{self._queue}” was deleted."))

    def _end_with(self, error: BaseException) -> None:
        self._end = self._end or error
        self._news.set()


class Getter:
    """Gets single messages from a queue; what is neither acked nor given back goes back too.

    `removed` counts messages that left with a get, at least two at once: when the first of a queue
    is taken, RabbitMQ removes those behind it whose TTL has ended, and consumers take some. A
    single one may have expired just then.
    """

    def __init__(self, channel: Any, connection: Any, queue: str) -> None:
        self._channel = channel
        self._connection = connection
        self._queue = queue
        self._ready: int | None = None
        self.removed = 0

    def get(self) -> Delivery | None:
        """The next message, None when the queue has no ready one."""
        if self._ready is None:
            self._ready = ready_messages(self._channel, self._queue)
        method, properties, body = self._channel.basic_get(self._queue)
        remaining = method.message_count if method else 0
        removed = self._ready - remaining - bool(method)
        self._ready, self.removed = remaining, self.removed + (removed if removed > 1 else 0)
        if method is None:
            return None
        read = read_properties(properties.raw)
        names = (method.exchange, method.routing_key)
        message = Message(*names, read, body or b"", method.redelivered)
        return Delivery(message, method.delivery_tag, datetime.now(UTC))

    def ack(self, delivery: Delivery) -> None:
        self._channel.basic_ack(delivery.tag)
        self._connection.process_data_events(0)

    def give_back(self) -> None:
        """Put everything that is not acknowledged back by nack, never by a bare close.

        On quorum queues of 4.3 a close counts as a failed delivery, a nack does not.
        """
        self._channel.basic_nack(0, multiple=True, requeue=True)
        self._connection.process_data_events(0)


@contextmanager
def getter(address: Address, queue: str, *, heartbeat: int = 10) -> Iterator[Getter]:
    """Get from a queue for the length of a block. Raises BrokerError."""
    with open_connection(address, f"getter of {queue}", heartbeat=heartbeat) as connection:
        channel = connection.channel()
        got = Getter(channel, connection, queue)
        try:
            yield got
        finally:
            if channel.is_open:
                got.give_back()


def take_offset(properties: Properties) -> int:
    """Read the offset that RabbitMQ adds as a header, whatever headers the publisher set.

    `raw` keeps the header. The raw bytes are searched when another header makes the table
    unreadable. Raises Unreachable when there is no offset: the queue is not a stream.
    """
    headers = cast(dict[str, Any], properties.headers)
    offset = headers.pop(OFFSET_HEADER, None)
    if not isinstance(offset, int):
        place = properties.raw.rfind(_OFFSET_ENTRY) + len(_OFFSET_ENTRY)
        value = properties.raw[place : place + 8]
        if place < len(_OFFSET_ENTRY) or len(value) < 8:
            raise Unreachable("A message of the stream has no offset.")
        offset = int.from_bytes(value, signed=True)
    return offset
