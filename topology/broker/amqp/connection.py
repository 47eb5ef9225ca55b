"""Opening AMQP connections with pika: short timeouts, raw properties, errors as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
import pika.exceptions
import pika.spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from topology.broker.address import Address
from topology.broker.amqp.frames import call_later, count_received, cut
from topology.broker.errors import (
    Blocked,
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
    alarm_sentence,
    refuse_unsupported,
)
from topology.broker.failures import explain_amqp

CONNECT_SECONDS = 2.0
HANDSHAKE_SECONDS = 2.8
HEARTBEAT_SECONDS = 6
BLOCKED_SECONDS = 10.0
CHECK_SECONDS = 0.25
# A node that answers heartbeats may not answer for a channel that waits for a paused other one.
CLOSE_SECONDS = 5.0


class RawProperties(pika.spec.BasicProperties):
    """Keeps the property bytes as they are: pika's decoder loses types and can die of one."""

    def __init__(self, raw: bytes = b"\x00\x00") -> None:
        # Without pika's fifteen attributes: this is made once for every message that comes.
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
        blocked_connection_timeout=min(BLOCKED_SECONDS, maximum_silence(heartbeat)),
        client_properties={"connection_name": f"delayboard {name}"},
    )


def maximum_silence(heartbeat: int) -> float:
    """Seconds without a byte until the connection is dead: RabbitMQ sends two per heartbeat."""
    return 1.5 * heartbeat


@contextmanager
def open_connection(
    address: Address, name: str, *, heartbeat: int = HEARTBEAT_SECONDS
) -> Iterator[pika.BlockingConnection]:
    """A connection for the length of a block; errors leave it as BrokerError.

    A broker that falls silent is noticed after one and a half heartbeats (seconds).
    """
    with translate_errors(address):
        connection = pika.BlockingConnection(parameters(address, heartbeat=heartbeat, name=name))
    _Watch(connection, maximum_silence(heartbeat)).check()
    try:
        with translate_errors(address):
            yield connection
    finally:
        close_quietly(connection)


class _Watch:
    """Cuts a connection on which nothing comes any more.

    pika's own check lets up to two heartbeats and ten seconds pass (heartbeat.py, 1.4.4), which
    no page can wait for. The timer runs on the connection's loop, also while a call waits.
    """

    def __init__(self, connection: pika.BlockingConnection, patience: float) -> None:
        self._connection = connection
        self._patience = patience
        self._heard = -1
        self._heard_at = 0.0

    def check(self) -> None:
        received = count_received(self._connection)
        if received != self._heard:
            self._heard, self._heard_at = received, time.monotonic()
        elif time.monotonic() - self._heard_at > self._patience:
            cut(self._connection, f"no data for {self._patience:g} s")
            return
        if self._connection.is_open:
            call_later(self._connection, CHECK_SECONDS, self.check)


def cut_after(connection: pika.BlockingConnection, seconds: float) -> None:
    """Cut it then, whatever it waits for: a broker with heartbeats may answer nothing else."""
    call_later(connection, seconds, lambda: cut(connection, f"no answer for {seconds:g} s"))


def close_quietly(connection: pika.BlockingConnection) -> None:
    """Close what may be broken already: the outcome of the work was decided before.

    What RabbitMQ does not close within CLOSE_SECONDS is cut.
    """
    with suppress(pika.exceptions.AMQPError, OSError):
        if connection.is_open:
            cut_after(connection, CLOSE_SECONDS)
            connection.close()


@contextmanager
def translate_errors(address: Address) -> Iterator[None]:
    """Turn pika's and the network's errors into the tree of `topology.broker.errors`."""
    try:
        yield
    except BrokerError:
        raise
    except pika.exceptions.AMQPError as error:
        raise explain_error(error, address) from error
    except AMQPConnectorException as error:
        # Not one of pika's AMQPErrors: the handshake itself did not come to an end.
        silent = Unreachable(
            f"The server at {address.host}:{address.port} did not answer as RabbitMQ in "
            f"{HANDSHAKE_SECONDS:.0f} seconds. Check the AMQP port, TLS and the load of RabbitMQ."
        )
        raise (explain_amqp(error, address) or silent) from error
    except (OSError, UnicodeError) as error:
        raise (explain_amqp(error, address) or _explain_silence(address)) from error


def explain_error(error: Exception, address: Address) -> BrokerError:
    where = f"{address.host}:{address.port}"
    match error:
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            return Refused(
                f"RabbitMQ at {where} refused the user “{address.username}”. Check the user "
                "name and the password."
            )
        case pika.exceptions.ProbableAccessDeniedError():
            return Refused(
                f"The user “{address.username}” cannot access the virtual host "
                f"“{address.vhost}” at {where}. Check the virtual host's name and the user's "
                "permissions."
            )
        case pika.exceptions.ChannelClosedByBroker() | pika.exceptions.ConnectionClosedByBroker():
            return _explain_close(error.reply_code, str(error.reply_text), address)
        case pika.exceptions.ConnectionBlockedTimeout():
            return Blocked(alarm_sentence())
    if known := explain_amqp(error, address):
        return known
    if isinstance(error, pika.exceptions.IncompatibleProtocolError):
        return Unreachable(
            f"The server at {where} does not speak AMQP 0-9-1 "
            f"{'over' if address.tls else 'without'} TLS. Check port and TLS."
        )
    inside: Any = error.args[0] if error.args else None
    inside = getattr(inside, "exception", inside)
    if isinstance(inside, pika.exceptions.AMQPError):
        return explain_error(inside, address)
    return _explain_silence(address)


def _explain_close(code: int, text: str, address: Address) -> BrokerError:
    if refusal := refuse_unsupported(text):
        return refusal
    sentence = f"RabbitMQ reported: {text}"
    match code:
        case 403 if "in exclusive use" in text:
            return Conflict(f"The queue has consumers. Stop the consumers. {sentence}")
        case 403:
            return Refused(
                f"The user “{address.username}” lacks a permission on the virtual host "
                f"“{address.vhost}”. Grant the permission. {sentence}"
            )
        case 404:
            return NotFound(sentence)
        case 405 | 406:
            return Conflict(sentence)
        case 530:
            return Refused(
                f"The virtual host “{address.vhost}” is not available. Check that it exists, "
                f"runs and is below its limits. {sentence}"
            )
    return Unreachable(sentence)


def _explain_silence(address: Address) -> Unreachable:
    return Unreachable(
        f"RabbitMQ at {address.host}:{address.port} does not answer. Check the network and the "
        "load of RabbitMQ."
    )
