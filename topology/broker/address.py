"""Where a broker's vhost is and with which credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from topology.broker.errors import BrokerError


class AddressError(BrokerError, ValueError):
    """The text is not a valid address; the message explains the error."""


def allow() -> None:
    """Nothing forbids a change."""


@dataclass(frozen=True)
class Address:
    """One vhost of one broker: AMQP, management API and credentials.

    `before_change` is called before each declaration, deletion and publish; what it raises
    prevents the change. `management_url` has no trailing slash. `ca_certificate` is PEM text, ""
    for the system's authorities; it serves both protocols.
    """

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)
    management_url: str = ""
    tls: bool = False
    verify_tls: bool = True
    ca_certificate: str = ""
    before_change: Callable[[], None] = field(default=allow, repr=False, compare=False)

    def ssl_context(self) -> ssl.SSLContext:
        """A client context for both protocols. Raises AddressError on unusable PEM text."""
        try:
            context = ssl.create_default_context(cadata=self.ca_certificate or None)
        except ssl.SSLError as error:
            raise AddressError("The certificate is not readable PEM text.") from error
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_address(amqp_url: str, management_url: str) -> Address:
    """Read amqp[s]://user:password@host[:port]/vhost and http[s]://host:port.

    Raises AddressError, also for options: Delayboard sets what they are about itself.

    As in RabbitMQ's URI specification a missing path is the vhost "/", and "/" alone too,
    since nobody means the vhost with the empty name.
    """
    sentence = "The broker's address must look like amqp://user:password@host/vhost."
    parts = _split(amqp_url, sentence)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise AddressError(sentence)
    if parts.query or parts.fragment:
        raise AddressError(
            "The broker's address has options behind “?” or “#”, and Delayboard takes none there. "
            "Remove them, or write %3F for ? and %23 for # in names and passwords."
        )
    check_management_url(management_url)
    tls = parts.scheme == "amqps"
    try:
        port = parts.port
    except ValueError as error:
        raise AddressError(
            "The port in the broker's address is not a number up to 65535."
        ) from error
    return Address(
        host=parts.hostname,
        port=port or (5671 if tls else 5672),
        vhost=unquote(parts.path[1:]) or "/",
        username=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        management_url=management_url.rstrip("/"),
        tls=tls,
    )


def default_management_url(amqp_url: str) -> str:
    """Where the management plugin answers unless configured otherwise. Raises AddressError."""
    address = parse_address(amqp_url, "http://unused")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"https://{host}:15671" if address.tls else f"http://{host}:15672"


def check_management_url(management_url: str) -> None:
    """Raises AddressError unless it is an http or https address of a host, without a password."""
    sentence = "The management address must look like http://host:15672."
    parts = _split(management_url, sentence)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError(sentence)
    if parts.query or parts.fragment:
        raise AddressError(
            "The management address must end after the host, the port and a path. Remove “?” or "
            "“#” and what follows."
        )
    if parts.username is not None:
        # It would appear in every message with the address, and override our own credentials.
        raise AddressError("The management address must not contain a user name or password.")


def _split(url: str, sentence: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise AddressError(sentence) from error
