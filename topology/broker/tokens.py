"""Access tokens of OAuth 2 for RabbitMQ, by client credentials: kept, and renewed before they end.

RFC 6749 section 4.4. RabbitMQ's plugin rabbitmq_auth_backend_oauth2 takes them as the password of
AMQP and as Bearer of the management API (tried on 4.0.5 and 4.3.6).
"""

from __future__ import annotations

import ssl
import time
from base64 import b64encode
from dataclasses import dataclass
from threading import Lock
from urllib.parse import quote_plus, urlsplit

import requests
import urllib3

from topology.broker.address import Address, AddressError
from topology.broker.errors import Refused, Unreachable
from topology.broker.management.answers import BoundedAdapter, Limits, read_answer

CONNECT_SECONDS, REQUEST_SECONDS = 1.5, 2.5
# Lifetime of a token without a stated end (RFC 6749 recommends to state it).
DEFAULT_LIFETIME_SECONDS = 300.0
# Last part of a token's lifetime, in which it is renewed.
RENEWED_PART = 0.3
# Seconds without a request after one that failed, unless the old token still holds.
REST_SECONDS = 2.0


@dataclass(frozen=True)
class Token:
    """A token; `ends_at` in monotonic seconds."""

    text: str
    ends_at: float
    lifetime: float

    @property
    def left(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def is_ending(self) -> bool:
        return self.left < RENEWED_PART * self.lifetime


class _Source:
    """The token of one client: one request at a time, shared by all connections."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.token: Token | None = None
        self.error: Exception | None = None
        self.failed_at = 0.0


_sources: dict[tuple[object, ...], _Source] = {}
_guard = Lock()


def get_token(address: Address) -> Token:
    """A token that holds for a while. Raises Refused, Unreachable, AddressError."""
    client = (address.token_url, address.username, address.password, address.token_scope)
    with _guard:
        source = _sources.setdefault(
            (*client, address.verify_tls, address.ca_certificate), _Source()
        )
    token = source.token
    if token is not None and not token.is_ending:
        return token
    with source.lock:
        if source.token is not None and not source.token.is_ending:
            return source.token
        holds = source.token is not None and source.token.left > 0
        if source.error is not None and time.monotonic() - source.failed_at < REST_SECONDS:
            if holds and source.token is not None:
                return source.token
            raise source.error
        try:
            source.token, source.error = _request(address), None
        except (Refused, Unreachable) as error:
            source.error, source.failed_at = error, time.monotonic()
            if not holds:
                raise
        assert source.token is not None
        return source.token


def _request(address: Address) -> Token:
    url = address.token_url
    limits = Limits()
    limits.begin(REQUEST_SECONDS)
    session = requests.Session()
    session.trust_env, session.verify = False, address.verify_tls
    scheme = urlsplit(url).scheme
    context = _ssl_context(address) if scheme == "https" else None
    # By the scheme alone: requests rewrites the rest of what was typed.
    session.mount(f"{scheme}://", BoundedAdapter(limits, url, context))
    # Section 2.3.1: both parts are encoded as in a form.
    client = f"{quote_plus(address.username)}:{quote_plus(address.password)}"
    form = {"grant_type": "client_credentials"}
    if address.token_scope:
        form["scope"] = address.token_scope
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, total=REQUEST_SECONDS)
    began = time.monotonic()
    try:
        with session:
            answer = read_answer(
                session.post(
                    url,
                    data=form,
                    headers={
                        "Authorization": f"Basic {b64encode(client.encode()).decode()}",
                        "Accept": "application/json",
                    },
                    timeout=timeout,  # type: ignore[arg-type]
                    allow_redirects=False,
                    stream=True,
                ),
                url,
            )
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        ValueError,
    ) as error:
        raise Unreachable(
            f"The token endpoint at {url} does not answer. Check the token address, its "
            "certificate and the network."
        ) from error
    return _read(
        address, answer.status, answer.json() if "json" in answer.content_type else None, began
    )


def _read(address: Address, status: int, given: object, began: float) -> Token:
    stated = given if isinstance(given, dict) else {}
    if status in (400, 401, 403):
        reason = str(stated.get("error_description") or stated.get("error") or status)[:200]
        raise Refused(
            f"The token endpoint at {address.token_url} refused the client “{address.username}” "
            f"({reason}). Check the client id, the secret and the scope."
        )
    text, lifetime = stated.get("access_token"), stated.get("expires_in")
    if status != 200 or not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise Unreachable(
            f"The server at {address.token_url} answered {status} without an access token. Check "
            "the token address."
        )
    seconds = DEFAULT_LIFETIME_SECONDS
    if isinstance(lifetime, int | float) and lifetime > 0:
        seconds = float(lifetime)
    return Token(text, began + seconds, seconds)


def _ssl_context(address: Address) -> ssl.SSLContext:
    """With the system's authorities, and the broker's own."""
    context = ssl.create_default_context()
    if address.ca_certificate:
        try:
            context.load_verify_locations(cadata=address.ca_certificate)
        except ssl.SSLError as error:
            raise AddressError("The CA certificate is not readable PEM text.") from error
    if not address.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def check_token_url(url: str) -> None:
    """Raises AddressError unless it is an http or https address of a host, without a password."""
    sentence = "The token address must look like https://host/path."
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AddressError(sentence) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise AddressError(sentence)
    if parts.username is not None or parts.fragment:
        raise AddressError("The token address must not contain a user name, a password or “#”.")
