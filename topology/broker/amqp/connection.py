"""Opening AMQP connections with pika: short timeouts, raw properties, errors as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pika.spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from topology.broker import health
from topology.broker.address import Address, SignIn
from topology.broker.amqp.frames import call_later, cut, heard_at, note_arrivals, renew_secret
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
from topology.broker.time_limit import run_in_background
from topology.broker.tokens import Token, get_token

CONNECT_SECONDS = 2.0
HANDSHAKE_SECONDS = 2.8
HEARTBEAT_SECONDS = 6
BLOCKED_SECONDS = 10.0
CHECK_SECONDS = 1.0
TOKEN_CHECK_SECONDS, SHORTEST_TOKEN_CHECK_SECONDS = 5.0, 0.25
# Seconds after which a closing connection is cut: a node that answers heartbeats may not answer for
# a channel that waits for a paused other node.
CLOSE_SECONDS = 5.0


REFUSAL_REMEDIES = {
    SignIn.PASSWORD: "Check the user name and the password.",
    SignIn.CERTIFICATE: (
        "Check that RabbitMQ offers EXTERNAL (plugin rabbitmq_auth_mechanism_ssl) and has a user "
        "with the certificate's name."
    ),
    SignIn.TOKEN: (
        "Check the scope, the audience and the signing key (rabbitmq_auth_backend_oauth2)."
    ),
}


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


def parameters(
    node: Address, *, heartbeat: int, name: str, is_hurried: bool = False
) -> pika.ConnectionParameters:
    """The parameters of a connection to one node; with short times if there are other nodes. Raises
    BrokerError.
    """
    server_name = node.server_name or node.host
    tls = pika.SSLOptions(node.ssl_context(), server_name) if node.tls else None
    return pika.ConnectionParameters(
        host=node.host,
        port=node.port,
        virtual_host=node.vhost,
        credentials=_credentials(node),
        ssl_options=tls,
        heartbeat=heartbeat,
        socket_timeout=health.HURRIED_CONNECT_SECONDS if is_hurried else CONNECT_SECONDS,
        stack_timeout=health.HURRIED_SECONDS if is_hurried else HANDSHAKE_SECONDS,
        blocked_connection_timeout=min(BLOCKED_SECONDS, maximum_silence(heartbeat)),
        client_properties={"connection_name": f"delayboard {name}"},
    )


def _credentials(node: Address) -> Any:
    match node.sign_in:
        case SignIn.CERTIFICATE:
            return pika.credentials.ExternalCredentials()
        case SignIn.TOKEN:
            # RabbitMQ reads the token from the password, and ignores the user name.
            return pika.PlainCredentials("", get_token(node).text)
    return pika.PlainCredentials(node.username, node.password)


def maximum_silence(heartbeat: int) -> float:
    """Seconds without a byte until the connection is dead: RabbitMQ sends two per heartbeat."""
    return 1.5 * heartbeat


@contextmanager
def open_connection(
    address: Address, name: str, *, heartbeat: int = HEARTBEAT_SECONDS
) -> Iterator[pika.BlockingConnection]:
    """A connection for the length of a block; errors leave it as BrokerError.

    A broker that falls silent is noticed after one and a half heartbeats (seconds, at least 1:
    without any, a quiet broker looks like a dead one).
    """
    connection, node = _connect(address, name, heartbeat)
    is_of_cluster = len(address.amqp_nodes) > 1
    _Watch(connection, node, maximum_silence(heartbeat), is_of_cluster=is_of_cluster).check()
    if address.sign_in is SignIn.TOKEN:
        _TokenRenewal(connection, address).check()
    try:
        with translate_errors(address):
            yield connection
    finally:
        close_quietly(connection)


def _connect(
    address: Address, name: str, heartbeat: int
) -> tuple[pika.BlockingConnection, Address]:
    """Connect to the first node that answers; returns its address too. A refusal is an answer.

    Raises BrokerError.
    """
    if address.sign_in is SignIn.TOKEN:
        # Here, because a failure of it is none of a node.
        get_token(address)
    nodes = health.order_nodes(address.amqp_nodes, "AMQP")
    failures: list[tuple[str, Unreachable]] = []
    for node in nodes:
        is_hurried = len(failures) < len(nodes) - 1
        try:
            with translate_errors(node):
                stated = parameters(node, heartbeat=heartbeat, name=name, is_hurried=is_hurried)
                connection = pika.BlockingConnection(stated)
        except Unreachable as error:
            health.record_failure(node.amqp_name, error)
            failures.append((node.amqp_name, error))
        else:
            health.record_answer(node.amqp_name)
            return connection, node
    raise health.explain_all(failures, "AMQP") from failures[-1][1]


class _TokenRenewal:
    """Sends RabbitMQ the next token before the one of a connection ends.

    The token endpoint is called in a thread of its own: the connection goes on meanwhile. When no
    new token comes, RabbitMQ closes the connection at the end of the old one.
    """

    def __init__(self, connection: pika.BlockingConnection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._sent = get_token(address)
        self._next: Future[Token] | None = None

    def check(self) -> None:
        if not self._connection.is_open:
            return
        if self._next is not None and self._next.done():
            token = None if self._next.exception() else self._next.result()
            self._next = None
            if token is not None and token != self._sent:
                renew_secret(self._connection, token.text)
                self._sent = token
        elif self._next is None and self._sent.is_ending:
            self._next = run_in_background(partial(get_token, self._address), "token renewal")
        # Nothing is left of a token that ended before a new one came.
        seconds = max(SHORTEST_TOKEN_CHECK_SECONDS, self._sent.left / 4)
        call_later(self._connection, min(TOKEN_CHECK_SECONDS, seconds), self.check)


class _Watch:
    """Cuts a connection on which nothing comes any more, or whose node lost its cluster.

    pika's own check lets up to two heartbeats and ten seconds pass (heartbeat.py, 1.4.4), which
    no page can wait for. The timer runs on the connection's loop, also while a call waits.
    """

    def __init__(
        self,
        connection: pika.BlockingConnection,
        node: Address,
        patience: float,
        *,
        is_of_cluster: bool,
    ) -> None:
        self._connection = connection
        self._node = node.amqp_name
        self._patience = patience
        # What a cluster finds out about a node cuts its connections within a second.
        self._pause = CHECK_SECONDS if is_of_cluster else patience
        note_arrivals(connection)

    def check(self) -> None:
        left = heard_at(self._connection) + self._patience - time.monotonic()
        if left <= 0:
            cut(self._connection, f"no data for {self._patience:g} s")
            return
        if health.is_cut_off(self._node):
            cut(self._connection, "the node lost the majority of its cluster")
            return
        if self._connection.is_open:
            call_later(self._connection, min(left, self._pause), self.check)


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
            f"The server at {address.where} did not answer as RabbitMQ in time. Check the AMQP "
            "port, TLS and the load of RabbitMQ."
        )
        raise (explain_amqp(error, address) or silent) from error
    except (OSError, UnicodeError) as error:
        raise (explain_amqp(error, address) or _explain_silence(address)) from error


def explain_error(error: Exception, address: Address) -> BrokerError:
    where = address.where
    match error:
        case pika.exceptions.ProbableAuthenticationError() | pika.exceptions.AuthenticationError():
            remedy = REFUSAL_REMEDIES[address.sign_in]
            return Refused(f"RabbitMQ at {where} refused {address.account}. {remedy}")
        case pika.exceptions.ProbableAccessDeniedError():
            return Refused(
                f"{_start_sentence(address.account)} cannot access the virtual host "
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
                f"{_start_sentence(address.account)} lacks a permission on the virtual host "
                f"“{address.vhost}”. Grant the permission. {sentence}"
            )
        case 404:
            return NotFound(sentence)
        case 405 | 406:
            return Conflict(sentence)
        case 530 if text.endswith("is down"):
            # Of this node alone: another one may have it.
            return Unreachable(
                f"The virtual host “{address.vhost}” does not run on this node. Restart it "
                f"(rabbitmqctl restart_vhost). {sentence}"
            )
        case 530:
            return Refused(
                f"The virtual host “{address.vhost}” is not available. Check that it exists, "
                f"runs and is below its limits. {sentence}"
            )
    return Unreachable(sentence)


def _explain_silence(address: Address) -> Unreachable:
    return Unreachable(
        f"RabbitMQ at {address.where} does not answer. Check the network and the load of RabbitMQ."
    )


def _start_sentence(words: str) -> str:
    return words[0].upper() + words[1:]
