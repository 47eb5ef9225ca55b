from __future__ import annotations

import socket
import ssl
from typing import Any

import pika.exceptions as pe
import pika.spec
import pytest
from pika.adapters.utils import connection_workflow as workflow

from tests.topology.builders import an_address
from topology.broker.amqp.connection import (
    CLOSE_SECONDS,
    RawProperties,
    close_quietly,
    parameters,
    translate_errors,
)
from topology.broker.amqp.pipeline import CONFIRMED, Publisher
from topology.broker.errors import (
    Blocked,
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
)
from topology.broker.properties.read import build_properties
from topology.message import Publish

ADDRESS = an_address("orders")


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("failed")
    error.verify_message = "self-signed certificate"
    return error


def failed_connect(cause: BaseException) -> pe.AMQPConnectionError:
    """As pika wraps what went wrong at a socket."""
    return pe.AMQPConnectionError(workflow.AMQPConnectorSocketConnectError(cause))


def lost(reason: str) -> pe.IncompatibleProtocolError:
    """As pika words an alert that comes after the handshake of TLS 1.3."""
    return pe.IncompatibleProtocolError(f"Stream connection lost: SSLError(1, '[SSL: {reason}] x')")


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (pe.ProbableAuthenticationError(), Refused, "refused the user “ann”. Check the user name"),
        (pe.AuthenticationError("PLAIN"), Refused, "refused the user “ann”"),
        (pe.ProbableAccessDeniedError(), Refused, "cannot access the virtual host “orders”"),
        (pe.ConnectionClosedByBroker(530, "vhost gone"), Refused, "“orders” is not available"),
        (pe.ConnectionClosedByBroker(320, "CONNECTION_FORCED"), Unreachable, "CONNECTION_FORCED"),
        (pe.ConnectionClosedByBroker(541, "INTERNAL"), Unreachable, "RabbitMQ reported: INTERNAL"),
        (pe.ChannelClosedByBroker(403, "no write"), Refused, "lacks a permission.*no write"),
        (pe.ChannelClosedByBroker(404, "no queue"), NotFound, "RabbitMQ reported: no queue"),
        (pe.ChannelClosedByBroker(405, "locked"), Conflict, "RabbitMQ reported: locked"),
        (
            pe.ChannelClosedByBroker(406, "inequivalent"),
            Conflict,
            "RabbitMQ reported: inequivalent",
        ),
        (
            pe.IncompatibleProtocolError("AMQP"),
            Unreachable,
            "does not speak AMQP 0-9-1 without TLS",
        ),
        (pe.StreamLostError("reset"), Unreachable, "does not answer"),
        (pe.AMQPHeartbeatTimeout("60 s"), Unreachable, "does not answer"),
        (pe.ConnectionBlockedTimeout("blocked"), Blocked, "blocks publishes until the alarm ends"),
        (pe.ConnectionWrongStateError(), Unreachable, "does not answer"),
        (pe.ChannelWrongStateError("closed"), Unreachable, "does not answer"),
        (pe.AMQPConnectionError("Timeout during AMQP handshake"), Unreachable, "does not answer"),
        (
            failed_connect(ConnectionRefusedError(111, "x")),
            Unreachable,
            "Nothing listens at broker",
        ),
        (
            failed_connect(socket.gaierror(-2, "x")),
            Unreachable,
            "The host “broker.test” does not exist",
        ),
        (failed_connect(socket.gaierror(-3, "x")), Unreachable, "name server did not answer"),
        (failed_connect(TimeoutError()), Unreachable, "does not answer"),
        (lost("TLSV13_ALERT_CERTIFICATE_REQUIRED"), Unreachable, "requires a client certificate"),
        (lost("SSLV3_ALERT_HANDSHAKE_FAILURE"), Unreachable, "refused the TLS connection"),
        (failed_connect(untrusted()), Unreachable, r"is not trusted \(self-signed certificate\)"),
        (failed_connect(ssl.SSLError("wrong version")), Unreachable, "Check that TLS is enabled"),
        (
            pe.AMQPConnectionError(pe.ProbableAccessDeniedError()),
            Refused,
            "cannot access the virtual host",
        ),
        (ConnectionRefusedError(111, "x"), Unreachable, "Nothing listens"),
        (socket.gaierror(-2, "x"), Unreachable, "does not exist. Check the host name"),
        (ConnectionResetError(), Unreachable, "does not answer"),
        (untrusted(), Unreachable, "Enter the CA certificate"),
        (ssl.SSLError("x"), Unreachable, "broker.test:5672 accepts no TLS connection"),
        (Conflict("said before"), Conflict, "said before"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_error_of_pika_and_the_network_has_its_sentence(
    error: Exception, kind: type[BrokerError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence) as raised, translate_errors(ADDRESS):
        raise error
    assert type(raised.value) is kind
    assert "hunter2" not in str(raised.value)


def test_another_error_is_none_of_the_brokers() -> None:
    with pytest.raises(KeyError), translate_errors(ADDRESS):
        raise KeyError


def test_raw_properties_are_what_pika_hands_over_and_sends() -> None:
    assert pika.spec.props[pika.spec.BasicProperties.INDEX] is RawProperties
    kept = RawProperties().decode(b"skip\x80\x00\x01a", 4)
    assert kept.raw == b"\x80\x00\x01a"
    assert kept.encode() == [kept.raw]


def test_the_connection_has_short_times_and_a_name() -> None:
    plain = parameters(ADDRESS, heartbeat=2, name="test")
    assert (plain.host, plain.port, plain.virtual_host) == ("broker.test", 5672, "orders")
    assert (plain.heartbeat, plain.socket_timeout, plain.stack_timeout) == (2, 2.0, 2.8)
    assert plain.blocked_connection_timeout == 3.0
    assert parameters(ADDRESS, heartbeat=10, name="t").blocked_connection_timeout == 10.0
    assert plain.client_properties == {"connection_name": "delayboard test"}
    assert plain.ssl_options is None
    assert parameters(an_address(tls=True), heartbeat=2, name="t").ssl_options is not None


class Channel:
    """Answers a publish with an error, as pika's channel does."""

    is_open = True

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.published: list[tuple[Any, ...]] = []

    def confirm_delivery(self) -> None: ...

    def basic_publish(self, *args: Any, properties: RawProperties, mandatory: bool) -> None:
        if self.error:
            raise self.error
        self.published.append((*args, properties.raw, mandatory))


class Bare:
    """The connection below pika's blocking one."""

    def __init__(self) -> None:
        self.timers: list[float] = []

    def _adapter_call_later(self, seconds: float, call: object) -> None:
        self.timers.append(seconds)


class Connection:
    is_open = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._impl = Bare()
        self.opened = 0

    def channel(self) -> Channel:
        self.opened += 1
        return self._channel

    def close(self) -> None:
        raise pe.ConnectionWrongStateError


def publisher_on(channel: Channel) -> Publisher:
    return Publisher(Connection(channel), ADDRESS)  # type: ignore[arg-type]


def test_a_message_is_published_mandatory_with_its_own_bytes() -> None:
    channel = Channel()
    properties = build_properties({"a": 1})
    assert publisher_on(channel).publish(Publish("x", "k", properties, b"body")) == CONFIRMED
    assert channel.published == [("x", "k", b"body", properties.raw, True)]


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (pe.UnroutableError([]), "returned", "The exchange “x” has no queue for the key “k”"),
        (pe.NackError([]), "nacked", "a queue refused it or failed. It may have arrived"),
        (pe.ChannelClosedByBroker(404, "x"), "failed", "The exchange “x” does not exist"),
        (pe.ChannelClosedByBroker(403, "x"), "failed", "lacks a permission"),
        (pe.ChannelClosedByBroker(406, "user_id"), "failed", "RabbitMQ reported: user_id"),
        (
            pe.ChannelClosedByBroker(541, "x"),
            "unknown",
            "The outcome of this message is unknown",
        ),
        (
            pe.ConnectionClosedByBroker(320, "x"),
            "unknown",
            "The outcome of this message is unknown",
        ),
        (pe.StreamLostError("x"), "unknown", "The outcome of this message is unknown"),
        (pe.ShortStringTooLong("k"), "failed", "more than 255 bytes"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_publish_that_fails_says_whether_it_may_have_been_published(
    error: Exception, kind: str, sentence: str
) -> None:
    answer = publisher_on(Channel(error)).publish(Publish("x", "k"))
    assert answer.kind == kind
    assert sentence in answer.error
    assert answer.may_have_arrived == (kind in ("nacked", "unknown"))


def test_a_channel_that_the_broker_closed_is_opened_anew() -> None:
    channel = Channel()
    connection = Connection(channel)
    publisher = Publisher(connection, ADDRESS)  # type: ignore[arg-type]
    channel.is_open = False
    publisher.publish(Publish("", "q"))
    assert connection.opened == 2


def test_pika_refuses_a_long_key_before_anything_is_sent() -> None:
    with pytest.raises(pe.ShortStringTooLong):
        pika.spec.Basic.Publish(routing_key="k" * 256).encode()


def test_closing_what_is_broken_is_no_error() -> None:
    connection = Connection(Channel())
    close_quietly(connection)  # type: ignore[arg-type]
    assert connection._impl.timers == [CLOSE_SECONDS]
