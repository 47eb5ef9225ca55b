"""Declaring and publishing: every message mandatory and confirmed, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions

from topology.broker.address import Address
from topology.broker.amqp.connection import RawProperties, explain_error, open_connection
from topology.broker.errors import (
    NACKED,
    Conflict,
    Nacked,
    NotFound,
    OutcomeUnknown,
    Refused,
    Returned,
    alarm_sentence,
    unroutable_sentence,
)
from topology.definitions import Definitions
from topology.message import Publish, Route

REQUEST_HEARTBEAT_SECONDS = 2


class Publisher:
    """Publishes on one channel of one connection; one thread at a time."""

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
    ) -> None:
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

    def publish(self, publish: Publish) -> None:
        """Returns when the broker has confirmed that a queue took the message.

        Raises Returned (no queue), NotFound (no such exchange), Refused (no permission), Conflict
        (a property that the broker does not take): then it was not published. Raises
        OutcomeUnknown when the connection broke before the answer, and Nacked when a queue refused
        it or failed: it may have been.
        """
        self._address.before_change()
        try:
            content = (publish.exchange, publish.routing_key, publish.body)
            raw = RawProperties(publish.properties.raw)
            self._get_channel().basic_publish(*content, properties=raw, mandatory=True)
        except pika.exceptions.UnroutableError as error:
            why = unroutable_sentence(publish.exchange, publish.routing_key)
            raise Returned(why) from error
        except pika.exceptions.NackError as error:
            raise Nacked(NACKED) from error
        except pika.exceptions.ShortStringTooLong as error:
            raise Conflict(
                "The exchange name or the routing key has more than 255 bytes."
            ) from error
        except pika.exceptions.AMQPError as error:
            raise self._why(error, publish) from error

    def _why(self, error: pika.exceptions.AMQPError, publish: Publish) -> Exception:
        if isinstance(error, pika.exceptions.ChannelClosedByBroker):
            if error.reply_code == 404:
                return NotFound(f"The exchange “{publish.exchange}” does not exist.")
            why = explain_error(error, self._address)
            if isinstance(why, (Refused, Conflict)):
                return why
        if isinstance(error, pika.exceptions.ConnectionBlockedTimeout):
            return OutcomeUnknown(f"{alarm_sentence()} The outcome of this message is unknown.")
        return OutcomeUnknown(
            "The connection closed before RabbitMQ confirmed the message. The outcome of this "
            "message is unknown."
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
