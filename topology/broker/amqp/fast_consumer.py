"""A queue consumed on the caller's own thread, fast: what pika decodes slowly is read by hand.

`consumer.Consumer` stamps each message on a thread of its own; here nothing but the number of
messages a second counts, and that an ack goes out for many at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika

from topology.broker.address import Address
from topology.broker.amqp.connection import open_connection, translate_errors
from topology.broker.amqp.depths import ready_messages
from topology.broker.amqp.frames import Arrival, Deliveries, ack_frame, send, wait
from topology.broker.errors import BrokerError, NotFound

# Bytes that are read and not taken yet at most, and one message more.
BUFFERED = 8_000_000
# Seconds between two reads when all of that is full: RabbitMQ cuts a silent connection.
ATTEND_SECONDS = 0.25


class Intake:
    """Consumes one queue with manual acks, `prefetch` at once; one thread at a time."""

    def __init__(
        self,
        connection: pika.BlockingConnection,
        address: Address,
        queue: str,
        prefetch: int,
        is_exclusive: bool = False,
    ) -> None:
        self._connection = connection
        self._address = address
        self._queue = queue
        self._is_exclusive = is_exclusive
        self._come: deque[Arrival] = deque()
        self._bytes = 0
        self._is_deleted = False
        self._read_at = 0.0
        self.is_given_back = False
        self._channel: Any = connection.channel()
        self._bare: Any = self._channel._impl
        self._number: int = self._bare.channel_number
        self._bare.add_on_cancel_callback(self._on_cancel)
        Deliveries(connection, self._number, self._on_arrival)
        self._channel.basic_qos(prefetch_count=prefetch)
        self._consume()

    def arrivals(self, room: int, seconds: float) -> Iterator[Arrival]:
        """At most `room` of the messages that arrived; waits up to `seconds` for the first.

        Raises BrokerError when the connection failed or the queue no longer exists.
        """
        if self._bytes < BUFFERED:
            self._read(0.0 if self._come else seconds)
        for _ in range(min(room, len(self._come))):
            arrival = self._come.popleft()
            self._bytes -= len(arrival.body)
            yield arrival

    @property
    def connection(self) -> pika.BlockingConnection:
        """For waiting for it beside another one."""
        return self._connection

    @property
    def waiting(self) -> int:
        """How many have come and are not taken."""
        return len(self._come)

    def attend(self) -> None:
        """Send what is to be sent, acks and heartbeats, and read, also where nothing is taken.

        Raises BrokerError as `arrivals`.
        """
        if self._bytes < BUFFERED or time.monotonic() - self._read_at > ATTEND_SECONDS:
            self._read(0.0)

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Attend to it while the block, which does not touch it, waits for something else."""
        is_over = threading.Event()

        def act() -> None:
            with suppress(BrokerError):
                while not is_over.wait(ATTEND_SECONDS):
                    self.attend()

        thread = threading.Thread(target=act, name="intake", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def ack(self, tags: Iterable[int], *, through: int = 0) -> None:
        """Acknowledge these, and all through `through`; it is sent at the next reading."""
        frames = [ack_frame(self._number, through, multiple=True)] if through else []
        frames += [ack_frame(self._number, tag) for tag in tags]
        if frames and self._bare.is_open:
            send(self._connection, b"".join(frames))

    def more(self) -> None:
        """Allow as many new messages as the prefetch, whatever has no ack yet."""
        with translate_errors(self._address):
            self._channel.basic_cancel(self._consumer)
            self._consume()

    def end(self) -> None:
        """Let nothing more come; what has come is to be taken as before."""
        with translate_errors(self._address):
            self._channel.basic_cancel(self._consumer)

    def depth(self) -> int:
        """How many are ready in the queue, besides what was sent to us."""
        with translate_errors(self._address):
            return ready_messages(self._channel, self._queue)

    def give_back(self) -> None:
        """Consume no more, put back by nack what is not acknowledged, and wait for it.

        On quorum queues of 4.3 a close counts as a failed delivery, a nack does not. When this
        has come to its end, `is_given_back`, the broker has every ack too.
        """
        if not self._channel.is_open or self._is_deleted:
            return
        self._channel.basic_cancel(self._consumer)
        self._channel.basic_nack(0, multiple=True, requeue=True)
        self._channel.queue_declare(self._queue, passive=True)
        self.is_given_back = True

    def close(self) -> None:
        """Have the queue put back in order what is not acknowledged; it counts as a delivery.

        A nack comes after a cancel, and a quorum queue puts back before it what was on its way to
        us at the cancel (rabbit_fifo_client:handle_delivery, 3.10.8 to 4.3.5).
        """
        if self._channel.is_open and not self._is_deleted:
            # pika would cancel them first.
            self._bare._consumers.clear()
            self._channel._consumer_infos.clear()
            self._channel.close()

    def _consume(self) -> None:
        self._consumer = self._channel.basic_consume(
            self._queue, lambda *_: None, exclusive=self._is_exclusive
        )

    def _read(self, seconds: float) -> None:
        self._read_at = time.monotonic()
        with translate_errors(self._address):
            wait(self._connection, seconds, self._has_news)
            if self._is_deleted:
                raise NotFound(f"The queue “{self._queue}” was deleted.")
            if not self._bare.is_open and self._connection.is_open:
                raise self._channel._closing_reason

    def _has_news(self) -> bool:
        return bool(self._come) or self._is_deleted or not self._bare.is_open

    def _on_arrival(self, arrival: Arrival) -> None:
        self._come.append(arrival)
        self._bytes += len(arrival.body)

    def _on_cancel(self, frame: Any) -> None:
        self._is_deleted = True


@contextmanager
def intake(
    address: Address,
    queue: str,
    *,
    prefetch: int,
    is_exclusive: bool = False,
    is_ordered: bool = False,
) -> Iterator[Intake]:
    """Consume a queue for the length of a block; what is not acknowledged goes back.

    With `is_exclusive` no other consumer may be there, and none can come. With `is_ordered` it goes
    back in order, and counts as delivered once more. Raises BrokerError.
    """
    with open_connection(address, f"intake of {queue}") as connection:
        taking = Intake(connection, address, queue, prefetch, is_exclusive)
        try:
            yield taking
        finally:
            if connection.is_open:
                taking.close() if is_ordered else taking.give_back()
