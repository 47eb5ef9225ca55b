"""From a queue to others, on one channel: a window of confirms, and each ack after its confirm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import pika
import pika.exceptions

from topology.broker.address import Address
from topology.broker.amqp import RawProperties, connected
from topology.broker.errors import BrokerError, Nacked, NotFound, Returned
from topology.broker.properties import read_properties
from topology.message import Message, Publish

# So many are on the way at once: what a crash may double.
WINDOW = 500
# So long a confirm is waited for when it ends: what has none by then may go twice.
DRAIN_SECONDS = 3.0

Token = TypeVar("Token")


class _Flight(NamedTuple, Generic[Token]):
    """What was published and not confirmed: the delivery it came from, its queue, whose it is."""

    tag: int
    queue: str
    token: Token


class Relay(Generic[Token]):
    """Publishes what `decide` makes of each message, mandatory, through the default exchange.

    `confirmed` is told the token of each that a queue has taken; only then it is acknowledged.
    The first that is given back or refused ends it: it stays in the queue that it came from. What
    was on the way to a queue that is gone stays too, for a return does not say which it was.
    `refusals` counts both.
    """

    def __init__(
        self,
        connection: pika.BlockingConnection,
        queue: str,
        decide: Callable[[Message], tuple[Publish, Token]],
        confirmed: Callable[[Token], None],
        *,
        window: int,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._decide = decide
        self._confirmed = confirmed
        self._flying: dict[int, _Flight[Token]] = {}
        self._published = 0
        self._absent: set[str] = set()
        self.refusals = 0
        self._trouble: Exception | None = None
        self._channel: Any = connection.channel()
        # BlockingChannel confirms one at a time; the channel under it calls back.
        self._bare = self._channel._impl
        self._bare.confirm_delivery(self._on_answer)
        self._bare.add_on_return_callback(self._on_return)
        self._channel.add_on_cancel_callback(self._on_cancel)
        self._channel.basic_qos(prefetch_count=window)
        self._tag = self._channel.basic_consume(queue, self._on_message)

    @property
    def is_open(self) -> bool:
        return bool(self._channel.is_open)

    def turn(self, seconds: float) -> None:
        """Take what comes within this time. Raises BrokerError, and what `decide` raises."""
        self._look(seconds)
        if self._trouble is not None:
            self._drain()
            raise self._trouble

    def give_back(self) -> None:
        """Wait for what is on the way, and put back what was not acknowledged, by nack."""
        self._channel.basic_cancel(self._tag)
        self._drain()
        self._channel.basic_nack(0, multiple=True, requeue=True)
        self._connection.process_data_events(0)

    def _look(self, seconds: float) -> None:
        self._connection.process_data_events(seconds)
        if not self._channel.is_open:
            raise self._channel._closing_reason

    def _drain(self) -> None:
        self._trouble = self._trouble or _Ending()
        until = time.monotonic() + DRAIN_SECONDS
        while self._flying and time.monotonic() < until:
            self._look(0.05)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if self._trouble is not None:
            return
        message = Message(
            method.exchange,
            method.routing_key,
            read_properties(properties.raw),
            body,
            method.redelivered,
        )
        publish, token = self._decide(message)
        self._published += 1
        self._flying[self._published] = _Flight(method.delivery_tag, publish.routing_key, token)
        self._bare.basic_publish(
            "", publish.routing_key, body, RawProperties(publish.properties.raw), mandatory=True
        )

    def _on_answer(self, frame: Any) -> None:
        tag, is_ack = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
        numbers = [n for n in self._flying if n <= tag] if frame.method.multiple else [tag]
        for number in numbers:
            flight = self._flying.pop(number)
            if not is_ack:
                self._fail(Nacked(_refusal(flight.queue, self._queue)))
            elif flight.queue not in self._absent:
                self._bare.basic_ack(flight.tag)
                self._confirmed(flight.token)

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """It comes before the confirm of the same message."""
        self._absent.add(method.routing_key)
        self._fail(Returned(_absence(method.routing_key, self._queue)))

    def _on_cancel(self, frame: Any) -> None:
        self._trouble = NotFound(f"The queue “{self._queue}” was deleted.")

    def _fail(self, error: BrokerError) -> None:
        self.refusals += 1
        self._trouble = self._trouble or error


class _Ending(Exception):
    """Nothing more is taken."""


def _absence(queue: str, source: str) -> str:
    return f"There is no queue “{queue}”: what is for it stays in “{source}” until there is one."


def _refusal(queue: str, source: str) -> str:
    return f"The queue “{queue}” refuses messages, is it full? What is for it stays in “{source}”."


@contextmanager
def relay(
    address: Address,
    queue: str,
    decide: Callable[[Message], tuple[Publish, Token]],
    confirmed: Callable[[Token], None],
    *,
    window: int = WINDOW,
) -> Iterator[Relay[Token]]:
    """Relay a queue for the length of a block. Raises BrokerError."""
    with connected(address, f"relay of {queue}") as connection:
        running = Relay(connection, queue, decide, confirmed, window=window)
        try:
            yield running
        finally:
            if running.is_open:
                running.give_back()
