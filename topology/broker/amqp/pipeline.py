"""Publishing many messages at once, or one at a time: mandatory, confirmed, each with an answer."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import pika
import pika.exceptions

from topology.broker.address import Address
from topology.broker.amqp.connection import (
    RawProperties,
    explain_error,
    open_connection,
    translate_errors,
)
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import (
    Unpublishable,
    bare,
    closing_reason,
    is_sending,
    largest_frame,
    publish_frames,
    send,
    wait,
    wait_for_any,
)
from topology.broker.amqp.returns import match_returned
from topology.broker.errors import (
    NACKED,
    BrokerError,
    Conflict,
    OutcomeUnknown,
    Refused,
    alarm_sentence,
    unroutable_sentence,
)
from topology.broker.properties.read import mark_doubled
from topology.definitions import Definitions
from topology.message import Publish, Route

REQUEST_HEARTBEAT_SECONDS = 2
# Bytes that are gathered before they are written to the socket.
GATHERED = 64 * 1024
# Seconds without an answer of RabbitMQ: a cluster needs a minute and a quarter by default to take a
# silent node for dead (net_ticktime). 3.10 never answers what such a node's queues had to take.
LONGEST_SILENCE_SECONDS = 120.0

Token = TypeVar("Token")


class Answer(NamedTuple):
    """The outcome of a publish; `error` is a sentence, "" when it is confirmed.

    `again`: it was published a second time, because its channel was closed or a returned message
    did not match any in flight; the message may exist twice. `nacked`: a queue refused it or
    failed, so the message may have arrived; `publish` is what was nacked. `refused`: a nack of
    which somebody found out that no queue took the message (topology/operations/answers.py).
    `unknown`: no confirm arrived before the wait ended, or the connection was lost.
    """

    kind: Literal["confirmed", "returned", "refused", "nacked", "failed", "unknown"]
    error: str = ""
    again: bool = False
    publish: Publish | None = None

    @property
    def may_have_arrived(self) -> bool:
        """Whether a queue may have the message: a repeat of it may be a duplicate."""
        return self.again or self.kind in ("confirmed", "nacked", "unknown")

    def require(self) -> None:
        """Raises OutcomeUnknown or Refused unless it is confirmed."""
        if self.kind != "confirmed":
            raise (OutcomeUnknown if self.may_have_arrived else Refused)(self.error)


CONFIRMED = Answer("confirmed")
UNKNOWN = "RabbitMQ did not confirm the message in time. The outcome of this message is unknown."


@dataclass(slots=True)
class _Flight(Generic[Token]):
    token: Token
    publish: Publish
    is_returned: bool = False
    may_be_returned: bool = False
    again: bool = False


class Pipeline(Generic[Token]):
    """Publishes on one channel of one connection; one thread at a time.

    When RabbitMQ closes the channel (no such exchange, no permission, an invalid property), the
    pipeline opens another and publishes again what had no confirm, one message at a time: so the
    message that closes the channel is known, and each message gets its answer. The same happens
    when a returned message may be any of several in flight. The second publish is marked.
    """

    def __init__(self, connection: pika.BlockingConnection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._frame_max = largest_frame(connection)
        self._in_flight: OrderedDict[int, _Flight[Token]] = OrderedDict()
        self._careful: deque[_Flight[Token]] = deque()
        self._answered: list[tuple[Token, Answer]] = []
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._broken: BrokerError | None = None
        self._heard_at = 0.0
        self._open()

    @property
    def in_flight(self) -> int:
        """How many have no answer."""
        return len(self._in_flight) + len(self._careful)

    @property
    def is_broken(self) -> bool:
        """The connection is: nothing more can be published."""
        return self._broken is not None

    def declare(self, definitions: Definitions) -> None:
        """Declare in order, waiting for each answer.

        Raises Conflict when an object has other arguments, NotFound when an end of a binding does
        not exist; messages in flight stay in flight.
        """
        self._address.before_change()
        self._flush()
        with translate_errors(self._address):
            channel = self._connection.channel()
            declare(channel, definitions)
            channel.close()

    def publish(self, publish: Publish, token: Token) -> None:
        """Put it on the way; its answer comes from `answers`."""
        flight = _Flight(token, publish)
        if self._careful:
            self._careful.append(flight)
        else:
            self._send(flight)

    def answers(self, seconds: float) -> list[tuple[Token, Answer]]:
        """What was answered; waits up to that long for the first, and is [] if there is none.

        Raises BrokerError when the connection is broken and all answers were handed out: nothing
        is known of what is still on the way. One on which answers are overdue counts as broken.
        """
        self._read_answers(seconds)
        if self._broken is not None and not self._answered:
            raise self._broken
        answered, self._answered = self._answered, []
        return answered

    def _read_answers(self, seconds: float) -> None:
        if self._broken is None:
            try:
                with translate_errors(self._address):
                    self._await(seconds)
                # What is not sent yet has no answer yet.
                if self._answered or is_sending(self._connection) or not self._in_flight:
                    self._heard_at = time.monotonic()
                elif time.monotonic() - self._heard_at > LONGEST_SILENCE_SECONDS:
                    raise OutcomeUnknown(UNKNOWN)
            except BrokerError as error:
                self._broken = error

    def wait_beside(self, consumer: Consumer, seconds: float) -> None:
        """Send, and wait for an answer or for a message of the consumer, whichever comes first."""
        self._read_answers(0.0)
        if self._broken is None and not self._answered:
            wait_for_any((self._connection, consumer.connection), seconds)

    def abandon(self) -> list[tuple[Token, Answer]]:
        """Give up what is on the way: nothing is known of it."""
        unknown = Answer("unknown", UNKNOWN)
        left = [*self._in_flight.values(), *self._careful]
        self._in_flight.clear()
        self._careful.clear()
        return [(flight.token, unknown._replace(again=flight.again)) for flight in left]

    def _await(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self._flush()
            wait(self._connection, max(0.0, until - time.monotonic()), self._has_news)
            if not self._bare.is_open and self._connection.is_open:
                self._reopen()
            if self._careful and not self._in_flight:
                self._send(self._careful.popleft())
            if self._answered or time.monotonic() >= until:
                break

    def _has_news(self) -> bool:
        return bool(self._answered) or (not self._bare.is_open and self._connection.is_open)

    def _open(self) -> None:
        self._channel: Any = self._connection.channel()
        # BlockingChannel confirms one at a time; the channel under it calls back.
        self._bare: Any = bare(self._channel)
        self._bare.confirm_delivery(self._on_answer)
        self._bare.add_on_return_callback(self._on_return)
        self._number: int = self._bare.channel_number
        self._published = 0

    def _reopen(self) -> None:
        """Open the channel again. A message that was alone in flight closed it; of many, each is
        tried again.
        """
        reason = closing_reason(self._channel)
        flights = list(self._in_flight.values())
        self._in_flight.clear()
        self._gathered.clear()
        if len(flights) == 1:
            exchange = flights[0].publish.exchange
            why = str(explain_error(reason, self._address))
            if getattr(reason, "reply_code", 0) == 404:
                why = f"The exchange “{exchange}” does not exist."
            self._answer(flights[0], Answer("failed", why))
        else:
            for flight in flights:
                self._take_care(flight)
        self._open()

    def _take_care(self, flight: _Flight[Token]) -> None:
        flight.again, flight.is_returned, flight.may_be_returned = True, False, False
        properties = mark_doubled(flight.publish.properties)
        flight.publish = replace(flight.publish, properties=properties)
        self._careful.append(flight)

    def _send(self, flight: _Flight[Token]) -> None:
        try:
            frames = list(publish_frames(self._number, flight.publish, self._frame_max))
        except Unpublishable as error:
            self._answer(flight, Answer("failed", str(error)))
            return
        self._published += 1
        if not self._in_flight:
            self._heard_at = time.monotonic()
        self._in_flight[self._published] = flight
        self._gathered += frames
        self._gathered_bytes += sum(map(len, frames))
        if self._gathered_bytes >= GATHERED:
            self._flush()

    def _flush(self) -> None:
        if self._gathered and self._bare.is_open:
            send(self._connection, b"".join(self._gathered))
        self._gathered.clear()
        self._gathered_bytes = 0

    def _on_answer(self, frame: Any) -> None:
        method = frame.method
        is_ack = isinstance(method, pika.spec.Basic.Ack)
        if not method.multiple:
            self._settle(method.delivery_tag, is_ack)
            return
        in_flight = self._in_flight
        while in_flight and (number := next(iter(in_flight))) <= method.delivery_tag:
            self._settle(number, is_ack)

    def _settle(self, number: int, is_ack: bool) -> None:
        flight = self._in_flight.pop(number)
        if flight.is_returned:
            publish = flight.publish
            why = unroutable_sentence(publish.exchange, publish.routing_key)
            self._answer(flight, Answer("returned", why))
        elif is_ack and flight.may_be_returned:
            self._take_care(flight)
        elif is_ack:
            self._answer(flight, CONFIRMED)
        else:
            self._answer(flight, Answer("nacked", NACKED, publish=flight.publish))

    def _answer(self, flight: _Flight[Token], answer: Answer) -> None:
        if flight.again:
            answer = answer._replace(again=True)
        self._answered.append((flight.token, answer))

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Note a returned message; RabbitMQ sends the return before the confirm.

        A confirm of one that came back is none: when it is not found, any may be it.
        """
        in_flight = [one for one in self._in_flight.values() if not one.is_returned]
        there = (method.exchange, method.routing_key)
        alike = [
            one for one in in_flight if (one.publish.exchange, one.publish.routing_key) == there
        ]
        is_same = match_returned(properties.raw, body)
        found = next((one for one in alike if is_same(one.publish)), None)
        possible = alike or in_flight
        if found is None and len(possible) == 1:
            found = possible[0]
        if found is not None:
            found.is_returned = True
        else:
            for one in possible:
                one.may_be_returned = True


@contextmanager
def pipeline(address: Address, name: str) -> Iterator[Pipeline[Any]]:
    """A pipeline for the length of a block. Raises BrokerError."""
    address.before_change()
    with open_connection(address, name) as connection:
        yield Pipeline(connection, address)


class Publisher:
    """Publishes one message at a time, on one channel of one connection; one thread at a time."""

    def __init__(self, connection: pika.BlockingConnection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._channel = self._open()

    def _open(self) -> pika.adapters.blocking_connection.BlockingChannel:
        channel = self._connection.channel()
        channel.confirm_delivery()
        return channel

    def publish_by(
        self, route: Route, publish: Publish, declared: Callable[[], None] = lambda: None
    ) -> Answer:
        """Declare what the route needs and publish within its lease, or declare again first.

        `declared` is called in between. Raises what `declare` and `publish` raise.
        """
        while True:
            begun = time.monotonic()
            self.declare(route.declares)
            declared()
            if route.lease is None or time.monotonic() - begun < route.lease.total_seconds():
                return self.publish(publish)

    def declare(self, definitions: Definitions) -> None:
        """Declare in order, waiting for each answer.

        Raises Conflict when an object has other arguments, NotFound when an end of a binding does
        not exist.
        """
        if definitions != Definitions():
            self._address.before_change()
        declare(self._get_channel(), definitions)

    def _get_channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        """The channel, or another one after the broker closed it."""
        if not self._channel.is_open:
            self._channel = self._open()
        return self._channel

    def keep_alive(self) -> None:
        """Read and answer heartbeats; called once in each, by whoever publishes nothing then."""
        self._connection.process_data_events()

    def publish(self, publish: Publish) -> Answer:
        """Wait for the answer. Raises ReadOnly."""
        self._address.before_change()
        try:
            content = (publish.exchange, publish.routing_key, publish.body)
            raw = RawProperties(publish.properties.raw)
            self._get_channel().basic_publish(*content, properties=raw, mandatory=True)
        except pika.exceptions.UnroutableError:
            return Answer("returned", unroutable_sentence(publish.exchange, publish.routing_key))
        except pika.exceptions.NackError:
            return Answer("nacked", NACKED, publish=publish)
        except pika.exceptions.ShortStringTooLong:
            return Answer("failed", "The exchange name or the routing key has more than 255 bytes.")
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code == 404:
                return Answer("failed", f"The exchange “{publish.exchange}” does not exist.")
            reason = explain_error(error, self._address)
            if isinstance(reason, (Refused, Conflict)):
                return Answer("failed", str(reason))
        except pika.exceptions.ConnectionBlockedTimeout:
            unknown = "The outcome of this message is unknown."
            return Answer("unknown", f"{alarm_sentence()} {unknown}")
        except pika.exceptions.AMQPError:
            pass
        else:
            return CONFIRMED
        return Answer(
            "unknown",
            "The connection closed before RabbitMQ confirmed the message. The outcome of this "
            "message is unknown.",
        )


@contextmanager
def publisher(address: Address, name: str, *, heartbeat: int = 10) -> Iterator[Publisher]:
    """A publisher for the length of a block. Raises BrokerError."""
    with open_connection(address, name, heartbeat=heartbeat) as connection:
        yield Publisher(connection, address)


def declare(channel: Any, definitions: Definitions) -> None:
    """Declare in order, waiting for each answer. Raises what pika raises."""
    for exchange in definitions.exchanges:
        lasts = {"durable": exchange.durable, "auto_delete": exchange.auto_delete}
        more = {"internal": exchange.internal, "arguments": dict(exchange.arguments)}
        channel.exchange_declare(exchange.name, exchange.type, **lasts, **more)
    for queue in definitions.queues:
        lasts = {"durable": queue.durable, "auto_delete": queue.auto_delete}
        channel.queue_declare(queue.name, **lasts, arguments=dict(queue.arguments))
    for one in definitions.bindings:
        bind = channel.queue_bind if one.destination_is_queue else channel.exchange_bind
        bind(one.destination, one.source, one.routing_key, dict(one.arguments))
