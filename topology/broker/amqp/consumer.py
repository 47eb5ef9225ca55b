"""Taking messages from a queue: consumed with manual acks, or got one at a time.

A stream is read over AMQP 0-9-1 like a queue, from an offset on: an ack takes nothing out of
it and only lets the next messages come (rabbit_stream_queue.erl 4.0.5, 4.3.6).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from math import inf
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, cast

import pika

from topology.broker.address import Address
from topology.broker.amqp.connection import HEARTBEAT_SECONDS, open_connection, translate_errors
from topology.broker.amqp.depths import is_known_empty, ready_messages
from topology.broker.amqp.frames import (
    Deliveries,
    Delivery,
    ack_frame,
    bare,
    close_without_cancel,
    closing_reason,
    send,
    wait,
    wake,
)
from topology.broker.errors import BrokerError, NotFound, Unreachable
from topology.message import Properties

CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 5.0
# Longest wait of the reading thread without bytes; a request to it wakes it earlier.
UNASKED_SECONDS = 60.0
# Most bytes that the caller's thread has read and not taken yet; one message more may be there.
BUFFERED = 8_000_000
# Seconds between two reads when this buffer is full: RabbitMQ cuts a silent connection.
ATTEND_SECONDS = 0.25
OFFSET_HEADER = "x-stream-offset"
_OFFSET_ENTRY = bytes([len(OFFSET_HEADER)]) + OFFSET_HEADER.encode() + b"l"

Start: TypeAlias = int | Literal["first", "last"]
Result = TypeVar("Result")


class Consumer:
    """Takes messages from one queue on a connection of its own, for the length of a block.

    A thread reads the connection: it stamps each message on arrival and sends heartbeats, even
    while the caller processes the last batch. With `in_thread` false the caller's thread does,
    whenever it calls, which is faster. One thread at a time may call.

    `prefetch` messages may be without an ack. With `is_exclusive` no other consumer may be there,
    and none can come. What has no ack at the end goes back: with a thread because the connection
    closes; else by nack, or with `is_ordered` in order, which counts as one more delivery.

    A stream is read from `start`: an offset, its first message, or the first of its last chunk. The
    consumer waits for an offset that does not exist yet. Messages that retention removed are
    visible only as a jump of the offsets.

    RabbitMQ sends what comes into a queue at once, unless as many as the prefetch have no ack. So
    `has_backlog` from such a moment on, and at the start, until the broker, asked by
    `find_backlog`, says that the queue is empty; what comes meanwhile may have waited there.

    Without a prefetch (None) nothing is consumed, and `get` gets messages. `removed` counts those
    that left with a get, at least two at once: when the first of a queue is taken, RabbitMQ removes
    those behind it whose TTL has ended, and consumers take some. A single one may have expired
    just then.
    """

    def __init__(
        self,
        address: Address,
        queue: str,
        *,
        prefetch: int | None = 500,
        in_thread: bool = True,
        start: Start | None = None,
        is_exclusive: bool = False,
        is_ordered: bool = False,
        heartbeat: int = HEARTBEAT_SECONDS,
    ) -> None:
        self._address = address
        self._queue = queue
        self._prefetch = prefetch
        self._start = start
        self._is_exclusive = is_exclusive
        self._is_ordered = is_ordered
        self._heartbeat = heartbeat
        self._come: deque[Delivery] = deque()
        self._bytes = 0
        self._read_at = 0.0
        self._is_deleted = False
        self.has_backlog = True
        self._is_finding = False
        self._last_tag = self._acked_tag = self._doubted_tag = 0
        self._end: BaseException | None = None
        self._ready: int | None = None
        self.removed = 0
        self.is_given_back = False
        self.connection: pika.BlockingConnection
        self._session = self._consume()
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(
                target=self._run, name=f"consumer of {queue}", daemon=True
            )
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self._asked: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._wanted = 1

    def __enter__(self) -> Consumer:
        if self._thread is None:
            self._session.__enter__()
            return self
        self._thread.start()
        if error := self._opened.get():
            raise error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is None:
            self._session.__exit__(kind, error, traceback)
            return
        self._stopping.set()
        with suppress(BrokerError):
            self._ask(lambda: None)
        self._thread.join(CLOSE_SECONDS)

    def batch(
        self, *, limit: int, wait: float, limit_bytes: float = inf, linger: float = 0.2
    ) -> list[Delivery]:
        """Wait up to `wait` seconds for a message, then collect up to a limit or until `linger`.

        Empty when none came. Raises BrokerError when the connection or the queue no longer exists.
        """
        self._await(1, wait)
        if not self._come:
            if self._end is not None:
                raise self._end
            return []
        if linger:
            self._await(limit, linger)
        taken: list[Delivery] = []
        size = 0
        while self._come and len(taken) < limit:
            size += len(self._come[0].body)
            if taken and size > limit_bytes:
                break
            delivery = self._come.popleft()
            self._bytes -= len(delivery.body)
            delivery.has_waited = self._has_waited(delivery)
            if self._start is not None:
                delivery.offset = take_offset(delivery.message.properties)
            taken.append(delivery)
        return taken

    def get(self) -> Delivery | None:
        """The next message, None when the queue has no ready one. Raises BrokerError."""
        with translate_errors(self._address):
            if self._ready is None:
                self._ready = ready_messages(self._channel, self._queue)
            method, properties, body = self._channel.basic_get(self._queue)
        remaining = method.message_count if method else 0
        removed = self._ready - remaining - bool(method)
        self._ready, self.removed = remaining, self.removed + (removed if removed > 1 else 0)
        if method is None:
            return None
        names = (method.exchange, method.routing_key)
        delivery = Delivery(method.delivery_tag, method.redelivered, *names, properties.raw)
        delivery.body = body or b""
        return delivery

    @property
    def is_caught_up(self) -> bool:
        """Whether all that may have waited in the queue was taken."""
        # In this order: what waited came before the backlog ended.
        return not (self.has_backlog or (self._come and self._has_waited(self._come[0])))

    @property
    def waiting(self) -> int:
        """How many have come and are not taken."""
        return len(self._come)

    def ack(self, tags: Iterable[int] = (), *, through: int = 0) -> None:
        """Acknowledge these, and all through `through`; it is sent at the next reading.

        Raises BrokerError where the thread that reads has ended.
        """
        number: int = self._channel.channel_number
        frames = [ack_frame(number, through, multiple=True)] if through else []
        frames += [ack_frame(number, tag) for tag in tags]

        def acknowledge() -> None:
            if self._prefetch and self._last_tag - self._acked_tag >= self._prefetch:
                self.has_backlog = True
            self._acked_tag = max(self._acked_tag, through)
            send(self.connection, b"".join(frames))

        if frames and self._channel.is_open:
            self._ask(acknowledge)

    def find_backlog(self) -> None:
        """Have the reading thread ask whether any wait in the queue, if `has_backlog`.

        Nobody waits for the answer: one that is late or absent leaves it as it is. A first answer
        of none can come before what has just left the queue, which the channel's process still
        has; the second comes after that (seen on 3.10.8 and 4.3.6). A stream keeps its messages,
        so that it is never known.
        """

        def find() -> None:
            with translate_errors(self._address):
                is_empty = all(is_known_empty(self._channel, self._queue) for _ in range(2))
            is_full = self._prefetch and self._last_tag - self._acked_tag >= self._prefetch
            self.has_backlog = bool(is_full or not is_empty)
            self._is_finding = False

        if self.has_backlog and not self._is_finding and self._start is None:
            self._is_finding = True
            self._ask(find)

    def doubt(self, taken: Iterable[Delivery]) -> None:
        """This process was stopped: these, and all that came or is on its way, may have waited."""
        self.has_backlog = True
        self._doubted_tag = self._last_tag
        for delivery in taken:
            delivery.has_waited = True

    def reject(self, delivery: Delivery, *, requeue: bool = False) -> None:
        """Refuse this delivery for good: it dies, with the reason `rejected`.

        With `requeue` it goes back into its queue instead, as one that failed there.
        """
        self._ask(lambda: self._channel.basic_reject(delivery.tag, requeue=requeue))

    def confirm_acks(self) -> None:
        """Wait until the broker has got every ack so far. Raises BrokerError.

        The channel's process handles in order what it is sent, and the queue's what that sends
        on: an answer that came by way of both comes after the acks (rabbit_channel.erl 3.10.8,
        4.3.5). What a broker that is killed had not yet written down comes again all the same.
        """
        self._act(lambda: self._channel.queue_declare(self._queue, passive=True))

    def depth(self) -> int:
        """How many are ready in the queue, besides what was sent to us."""
        return self._act(lambda: ready_messages(self._channel, self._queue))

    def more(self) -> None:
        """Allow as many new messages as the prefetch, whatever has no ack yet."""
        self.end()
        self._act(self._start_consuming)

    def end(self) -> None:
        """Let nothing more come; what has come is to be taken as before."""
        self._act(lambda: self._channel.basic_cancel(self._tag))

    def give_back(self, *, through: int = 0) -> None:
        """Consume no more, put back by nack what is not acknowledged, and wait for it.

        Before that it acknowledges all through `through`, in place of which nothing comes any
        more. On quorum queues of 4.3 a close counts as a failed delivery, a nack does not. When
        this has come to its end, `is_given_back`, the broker has every ack too. Raises BrokerError.
        """

        def act() -> None:
            if self._prefetch is not None:
                self._channel.basic_cancel(self._tag)
            if through:
                self._channel.basic_ack(through, multiple=True)
            self._channel.basic_nack(0, multiple=True, requeue=True)
            if self._prefetch is not None:
                self._channel.queue_declare(self._queue, passive=True)

        self._act(act)
        self.is_given_back = True

    def attend(self) -> None:
        """Send what is to be sent, acks and heartbeats, and read, also where nothing is taken.

        For the caller's thread, where no other reads. Raises BrokerError as `batch`.
        """
        if self._bytes < BUFFERED or time.monotonic() - self._read_at > ATTEND_SECONDS:
            self._read(0.0, lambda: True)

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Attend to it while the block, which does not touch it, waits for something else."""
        is_over = threading.Event()

        def act() -> None:
            with suppress(BrokerError):
                while not is_over.wait(ATTEND_SECONDS):
                    self.attend()

        thread = threading.Thread(target=act, name="attending", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _await(self, number: int, seconds: float) -> None:
        """Wait until so many have come, or the time is up.

        Nobody is woken for each message: two threads that take turns at that spend more on
        their turns than on the messages.
        """
        if self._thread is None:
            if self._bytes < BUFFERED:
                is_there = len(self._come) >= number
                self._read(0.0 if is_there else seconds, lambda: len(self._come) >= number)
            return
        until = time.monotonic() + seconds
        self._wanted = number
        while len(self._come) < number and self._end is None:
            self._news.clear()
            if len(self._come) >= number or not self._news.wait(until - time.monotonic()):
                return

    def _read(self, seconds: float, is_ready: Callable[[], bool]) -> None:
        """Send and receive until it is ready, the queue is deleted, or the time is up."""
        self._read_at = time.monotonic()
        with translate_errors(self._address):
            wait(
                self.connection,
                seconds,
                lambda: is_ready() or self._is_deleted or not self._channel.is_open,
            )
            if self._is_deleted:
                raise NotFound(f"The queue “{self._queue}” was deleted.")
            if not self._channel.is_open and self.connection.is_open:
                raise closing_reason(self._channel)

    def _ask(self, act: Callable[[], object]) -> None:
        """Act in the thread that reads, which nobody waits for. Raises BrokerError."""
        if self._thread is None:
            with translate_errors(self._address):
                act()
            return
        if not self._thread.is_alive():
            raise Unreachable(f"The connection of the consumer of “{self._queue}” closed.")
        self._asked.put(act)
        with translate_errors(self._address):
            wake(self.connection)

    def _act(self, act: Callable[[], Result]) -> Result:
        """Act in the thread that reads, and wait for it. Raises BrokerError."""
        if self._thread is None:
            with translate_errors(self._address):
                return act()
        future: Future[Result] = Future()

        def run() -> None:
            try:
                with translate_errors(self._address):
                    future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
                raise

        self._ask(run)
        until = time.monotonic() + ANSWER_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:
            with suppress(TimeoutError):
                return future.result(0.1)
        raise self._end or Unreachable(f"RabbitMQ does not answer about the queue “{self._queue}”.")

    def _run(self) -> None:
        try:
            with self._session:
                self._opened.put(None)
                while not self._stopping.is_set():
                    self._read(UNASKED_SECONDS, lambda: not self._asked.empty())
                    self._do_asked()
                # The acks and rejects that were asked for before the end.
                self._do_asked()
                self._read(0.0, lambda: True)
        except BaseException as error:
            # Whatever the error is, the caller that waits for this thread must get it.
            self._opened.put(error)
            self._end = self._end or error
            self._news.set()

    def _do_asked(self) -> None:
        while not self._asked.empty():
            self._asked.get()()

    @contextmanager
    def _consume(self) -> Iterator[None]:
        name = f"consumer of {self._queue}"
        with open_connection(self._address, name, heartbeat=self._heartbeat) as self.connection:
            self._channel: Any = self.connection.channel()
            if self._prefetch is not None:
                # The blocking channel reports it only where it waits for something itself.
                bare(self._channel).add_on_cancel_callback(self._on_cancel)
                Deliveries(self.connection, self._channel.channel_number, self._on_arrival)
                self._channel.basic_qos(prefetch_count=self._prefetch)
                self._start_consuming()
            try:
                yield
            finally:
                is_usable = self.connection.is_open and self._channel.is_open
                if is_usable and not self._is_deleted and self._thread is None:
                    self._leave()

    def _leave(self) -> None:
        if self._is_ordered:
            # A nack comes after a cancel, and a quorum queue puts back before it what was on its
            # way to us at the cancel (rabbit_fifo_client:handle_delivery, 3.10.8 to 4.3.5).
            close_without_cancel(self._channel)
        else:
            self.give_back()

    def _start_consuming(self) -> None:
        arguments = None if self._start is None else {OFFSET_HEADER: self._start}
        self._tag: str = self._channel.basic_consume(
            self._queue, lambda *_: None, exclusive=self._is_exclusive, arguments=arguments
        )

    def _on_arrival(self, delivery: Delivery) -> None:
        # In this order: `doubt` may be called in between.
        self._last_tag = delivery.tag
        delivery.has_waited = self.has_backlog
        self._come.append(delivery)
        self._bytes += len(delivery.body)
        if len(self._come) >= self._wanted:
            self._news.set()

    def _has_waited(self, delivery: Delivery) -> bool:
        return delivery.has_waited or delivery.tag <= self._doubted_tag

    def _on_cancel(self, frame: Any) -> None:
        self._is_deleted = True


def getter(address: Address, queue: str, *, heartbeat: int = 10) -> Consumer:
    """Gets single messages; what is not acknowledged goes back by nack at the end."""
    return Consumer(address, queue, prefetch=None, in_thread=False, heartbeat=heartbeat)


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
