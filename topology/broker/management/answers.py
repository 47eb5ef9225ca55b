"""The one reader of the management API's answers: each has a limit of time, size and nesting.

Whoever answers at the address may be no RabbitMQ, or one that is broken. An answer beyond a limit
is refused whole, as one sentence: nothing acts on a part of one.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import requests

from topology.broker.address import Address
from topology.broker.errors import (
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
    refuse_unsupported,
)
from topology.content.bodies import unpack

MEGABYTE = 1024 * 1024
# Largest answer in bytes, packed or unpacked.
MOST_BYTES = 128 * MEGABYTE
# Most levels of nesting in an answer; RabbitMQ has six (the details of a queue's consumers).
DEEPEST = 100
# Bytes of the limit that each value of an answer counts for: a value in memory takes about 64,
# which for the shortest ones is twenty times their JSON.
BYTES_FOR_A_VALUE = 16
_PIECE_BYTES = 65_536
_VALUES = (b",", b"[", b"{")


class Limits:
    """What one call may still take: `until` in monotonic seconds, `room` in bytes as they come."""

    def __init__(self) -> None:
        self.until = 0.0
        self.room = 0

    def begin(self, seconds: float) -> None:
        """Start a call of at most so many seconds."""
        self.until = time.monotonic() + seconds
        self.room = MOST_BYTES

    @property
    def seconds(self) -> float:
        """Seconds that remain, never less than a thousandth."""
        return max(0.001, self.until - time.monotonic())


@dataclass(frozen=True)
class Answer:
    """A whole answer; `body` is unpacked, `url` that of the management API."""

    status: int
    phrase: str
    content_type: str
    body: bytes
    url: str

    def json(self) -> Any:
        """The decoded body, None for an empty one. Raises Unreachable."""
        if not self.body:
            return None
        if sum(map(self.body.count, _VALUES)) > MOST_BYTES // BYTES_FOR_A_VALUE:
            raise _explain_size(self.url)
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise _explain_unread(self.body, str(error), self.url) from error
        if _is_deeper(value, DEEPEST):
            raise _explain_nesting(self.url)
        return value

    @property
    def reason(self) -> str:
        """RabbitMQ's words about an error, at most 500 characters. Raises Unreachable."""
        stated = self.json() if "json" in self.content_type else None
        given = stated if isinstance(stated, dict) else {}
        return str(given.get("reason") or given.get("error") or self.phrase)[:500]


def read_answer(response: requests.Response, url: str) -> Answer:
    """Read a streamed response to its end. Raises Unreachable, urllib3's HTTPError."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    read = bytearray()
    with response:
        while piece := response.raw.read(_PIECE_BYTES, decode_content=False):
            read += piece
            if len(read) > MOST_BYTES:
                raise _explain_size(url)
    body = bytes(read)
    if body and encoding not in ("", "identity"):
        body = _unpack(body, encoding, url)
    kind = response.headers.get("Content-Type", "")
    return Answer(response.status_code, response.reason or "", kind, body, url)


def _unpack(body: bytes, encoding: str, url: str) -> bytes:
    if encoding not in ("gzip", "x-gzip"):
        raise Unreachable(
            f"The management API at {url} uses the encoding “{encoding[:40]}”, which Delayboard "
            "did not request. Check what answers at this address."
        )
    unpacked = unpack(body, "gzip", MOST_BYTES + 1)
    if len(unpacked.data) > MOST_BYTES:
        raise _explain_size(url)
    if not unpacked.how or unpacked.notes:
        raise Unreachable(
            f"The management API at {url} sent a damaged gzip answer. Check for a proxy between "
            "Delayboard and RabbitMQ."
        )
    return unpacked.data


def _explain_unread(body: bytes, problem: str, url: str) -> Unreachable:
    if problem.startswith("depth limit"):
        return _explain_nesting(url)
    is_text = "surrogate" in problem or "not valid UTF-8" in problem
    if is_text and body.lstrip()[:1] in (b"{", b"["):
        return Unreachable(
            f"The management API at {url} sent text that is not valid Unicode, which "
            "RabbitMQ never sends. Check what answers at this address."
        )
    return Unreachable(
        f"The answer from {url} does not come from a management API. Check the address."
    )


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than so many levels deep."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        level = [
            part
            for outer in level
            for part in (outer.values() if type(outer) is dict else outer)
            if type(part) is dict or type(part) is list
        ]
        if not level:
            return False
    return bool(level)


def _explain_nesting(url: str) -> Unreachable:
    return Unreachable(
        f"The management API at {url} sent an answer nested more than {DEEPEST} levels deep, "
        "which RabbitMQ never sends. Check what answers at this address."
    )


def _explain_size(url: str) -> Unreachable:
    return Unreachable(
        f"The management API at {url} sent an answer above the limit of "
        f"{MOST_BYTES // MEGABYTE} MB. Check what answers at this address."
    )


class BoundedAdapter(requests.adapters.HTTPAdapter):
    """Reads heads and bodies within `limits`; `context` is the TLS context of an https address.

    `server_name` replaces the host in the check of the server's certificate.
    """

    def __init__(
        self, limits: Limits, url: str, context: Any = None, server_name: str = ""
    ) -> None:
        self._limits = limits
        self._url = url
        self._context = context
        self._server_name = server_name
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        if self._context is not None:
            kwargs["ssl_context"] = self._context
            if self._server_name:
                kwargs["server_hostname"] = self._server_name
        super().init_poolmanager(*args, **kwargs)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        kind = type(pool).ConnectionCls

        def connection(**settings: Any) -> Any:
            made = kind(**settings)
            made.response_class = partial(_Response, limits=self._limits, url=self._url)
            return made

        pool.ConnectionCls = connection
        return pool


class _Response(http.client.HTTPResponse):
    """The standard library's, over a socket that is read within limits."""

    def __init__(self, sock: socket.socket, *args: Any, limits: Limits, url: str, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_Bounded(sock, raw, limits, url))


class _Bounded(io.RawIOBase):
    """A socket's bytes until the time or the room of `limits` ends.

    A time-out of the socket itself begins again with every byte that comes.
    """

    def __init__(self, sock: socket.socket, raw: Any, limits: Limits, url: str) -> None:
        self._sock = sock
        self._raw = raw
        self._limits = limits
        self._url = url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._limits.until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        count: int | None = self._raw.readinto(buffer)
        self._limits.room -= count or 0
        if self._limits.room < 0:
            raise _explain_size(self._url)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def explain_answer(status: int, reason: str, address: Address) -> BrokerError:
    """The error for an answer from 300 on, by its status and the reason that it gives."""
    if known := refuse_unsupported(reason):
        return known
    match status:
        case 401 | 403:
            return _explain_refusal(reason, address)
        case 404 if reason == "vhost_not_found":
            return no_vhost(address)
        case 404:
            return NotFound(f"The management API found no such object ({reason}).")
        case 400 | 405 | 409:
            return Conflict(f"RabbitMQ reported: {reason}")
    if 300 <= status < 400:
        return Unreachable(
            f"The management API answered {status}, a redirect to another address. Enter that "
            "address, because Delayboard does not send the password elsewhere."
        )
    return Unreachable(f"The management API answered {status}: {reason}")


def no_vhost(address: Address) -> Refused:
    return Refused(
        f"The virtual host “{address.vhost}” does not exist at {address.management_url}, or the "
        f"user “{address.username}” has no access. Check the name and the user's permissions."
    )


def no_api(address: Address) -> Unreachable:
    """The error for a 404 where there is no management API: it always has /api/overview, and
    answers with JSON (3.10.8 to 4.3.6).
    """
    return Unreachable(
        f"The server at {address.management_url} has no management API. Check the address, and run "
        "`rabbitmq-plugins enable rabbitmq_management`."
    )


def _explain_refusal(reason: str, address: Address) -> Refused:
    """Classify a 401 by RabbitMQ's words, which are the same from 3.10 to 4.3."""
    name, vhost = address.username, address.vhost
    for words, tag, what in (
        ("Not management user", "management", "use the management API"),
        ("Not administrator user", "administrator", "do that"),
    ):
        if words in reason:
            return Refused(
                f"The user “{name}” may not {what}. Add the tag “{tag}” (rabbitmqctl set_user_tags "
                f"{name} {tag})."
            )
    if "access virtual host" in reason:
        what = f"has no permissions on the virtual host “{vhost}”"
        return Refused(f"The user “{name}” {what}. Grant permissions to the user.")
    refused = f"The management API refused the user “{name}”"
    if reason in ("Login failed", "Not_Authorized"):
        return Refused(f"{refused}. Check the user name and the password.")
    return Refused(
        f"{refused} ({reason}). Check the password, the tag (management) and the permissions on "
        f"“{vhost}”."
    )
