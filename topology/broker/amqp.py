"""Opening AMQP connections with pika: short timeouts, raw properties, errors as sentences."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions
import pika.spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from topology.broker.address import Address
from topology.broker.errors import (
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
)

CONNECT_SECONDS = 3.0
HANDSHAKE_SECONDS = 4.0
HEARTBEAT_SECONDS = 10


class RawProperties(pika.spec.BasicProperties):
    """Keeps the property bytes as they are: pika's decoder loses types and can die of one."""

    def __init__(self, raw: bytes = b"\x00\x00") -> None:
        super().__init__()
        self.raw = raw

    def decode(self, encoded: bytes, offset: int = 0) -> RawProperties:
        self.raw = bytes(encoded[offset:])
        return self

    def encode(self) -> list[bytes]:
        return [self.raw]


_classes: dict[int, Any] = pika.spec.props
_classes[pika.spec.BasicProperties.INDEX] = RawProperties


def parameters(address: Address, *, heartbeat: int, name: str) -> pika.ConnectionParameters:
    tls = pika.SSLOptions(address.ssl_context(), address.host) if address.tls else None
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.username, address.password),
        ssl_options=tls,
        heartbeat=heartbeat,
        socket_timeout=CONNECT_SECONDS,
        stack_timeout=HANDSHAKE_SECONDS,
        blocked_connection_timeout=HEARTBEAT_SECONDS,
        client_properties={"connection_name": f"delayboard {name}"},
    )


@contextmanager
def connected(
    address: Address, name: str, *, heartbeat: int = HEARTBEAT_SECONDS
) -> Iterator[pika.BlockingConnection]:
    """A connection for the length of a block; errors leave it as BrokerError."""
    with translated(address):
        connection = pika.BlockingConnection(parameters(address, heartbeat=heartbeat, name=name))
    try:
        with translated(address):
            yield connection
    finally:
        close_quietly(connection)


def close_quietly(connection: pika.BlockingConnection) -> None:
    """Close what may be broken already: the outcome of the work was decided before."""
    try:
        if connection.is_open:
            connection.close()
    except (pika.exceptions.AMQPError, OSError):
        return


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turn pika's and the network's errors into the tree of `topology.broker.errors`."""
    try:
        yield
    except BrokerError:
        raise
    except pika.exceptions.AMQPError as error:
        raise explained(error, address) from error
    except AMQPConnectorException as error:
        # Not one of pika's AMQPErrors: the handshake itself did not come to an end.
        raise _no_handshake(address) from error
    except ssl.SSLError as error:
        raise _tls_error(error, address) from error
    except (OSError, UnicodeError) as error:
        raise _no_answer(address, error) from error


def explained(error: Exception, address: Address) -> BrokerError:
    """The sentence for an error of pika."""
    where = f"{address.host}:{address.port}"
    match error:
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            return Refused(
                f"RabbitMQ at {where} refused the user “{address.username}”: "
                "check the user name and the password."
            )
        case pika.exceptions.ProbableAccessDeniedError():
            return Refused(
                f"The user “{address.username}” may not use the virtual host "
                f"“{address.vhost}” at {where}, or there is none of this name."
            )
        case pika.exceptions.ChannelClosedByBroker() | pika.exceptions.ConnectionClosedByBroker():
            return _closed(error.reply_code, str(error.reply_text), address)
        case pika.exceptions.IncompatibleProtocolError():
            return Unreachable(
                f"What listens at {where} does not speak AMQP 0-9-1 "
                f"{'over TLS' if address.tls else 'without TLS'}: check port and TLS."
            )
    cause: Any = error
    if isinstance(error, pika.exceptions.AMQPConnectionError) and error.args:
        cause = getattr(error.args[0], "exception", error.args[0])
    if isinstance(cause, pika.exceptions.AMQPError) and cause is not error:
        return explained(cause, address)
    if isinstance(cause, ssl.SSLError):
        return _tls_error(cause, address)
    return _no_answer(address, cause)


def _closed(code: int, text: str, address: Address) -> BrokerError:
    said = f"RabbitMQ said: {text}"
    match code:
        case 403:
            return Refused(f"The user “{address.username}” lacks a permission. {said}")
        case 404:
            return NotFound(said)
        case 405 | 406:
            return Conflict(said)
        case 530:
            return Refused(f"The virtual host “{address.vhost}” cannot be used. {said}")
    return Unreachable(said)


def _tls_error(error: ssl.SSLError, address: Address) -> BrokerError:
    where = f"{address.host}:{address.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refused(
            f"The certificate of {where} is not trusted ({error.verify_message}): "
            "give its authority's certificate, or the right host name."
        )
    return Unreachable(f"No TLS connection with {where}: is TLS switched on at this port?")


def _no_handshake(address: Address) -> Unreachable:
    where = f"{address.host}:{address.port}"
    return Unreachable(
        f"What listens at {where} does not answer as RabbitMQ does in {HANDSHAKE_SECONDS:.0f} "
        "seconds: is it overloaded, is it RabbitMQ's AMQP port? Check port and TLS."
    )


def _no_answer(address: Address, cause: object) -> Unreachable:
    where = f"{address.host}:{address.port}"
    if isinstance(cause, ConnectionRefusedError) or "refused" in str(cause):
        return Unreachable(f"Nothing listens at {where}: is RabbitMQ running, is the port right?")
    if isinstance(cause, (socket.gaierror, UnicodeError)):
        return Unreachable(f"There is no host named “{address.host}”.")
    return Unreachable(f"RabbitMQ at {where} does not answer.")
