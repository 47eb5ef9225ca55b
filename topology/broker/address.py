"""Where a broker's vhost is, and how Delayboard signs in there."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

from cryptography import x509

from topology.broker.errors import BrokerError

AMQP_PORT, AMQPS_PORT = 5672, 5671
# Time before the end of a certificate from which it is reported: an operator needs it to renew.
RENEWAL_TIME = timedelta(days=30)


class AddressError(BrokerError, ValueError):
    """The text is not a valid address; the message explains the error."""


def allow() -> None:
    """Nothing forbids a change."""


class SignIn(StrEnum):
    """What RabbitMQ knows Delayboard by."""

    PASSWORD = "password"  # noqa: S105
    # Sign-in over AMQP by a client certificate; the management API takes none in place of a
    # password.
    CERTIFICATE = "certificate"
    # Sign-in by OAuth 2 tokens: user name and password are those of the client at the token
    # endpoint.
    TOKEN = "token"  # noqa: S105


@dataclass(frozen=True)
class Address:
    """One vhost of one broker: AMQP, management API and credentials.

    `before_change` is called before each declaration, deletion and publish; what it raises
    prevents the change.

    `others` (host, port) and `other_management_urls` are of more nodes of the same cluster, to be
    tried in turn. `management_url` has no trailing slash. `ca_certificate` is PEM text, "" for the
    system's authorities; it serves both protocols, as do the client's certificate and key (PEM).
    `server_name` replaces the host in the check of the server's certificate. `doubted` are the
    addresses, as `amqp_name` and `management_url`, that did not answer another process lately.
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
    others: tuple[tuple[str, int], ...] = ()
    other_management_urls: tuple[str, ...] = ()
    sign_in: SignIn = SignIn.PASSWORD
    client_certificate: str = ""
    client_key: str = field(default="", repr=False)
    server_name: str = ""
    token_url: str = ""
    token_scope: str = ""
    doubted: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def amqp_name(self) -> str:
        return format_host_port(self.host, self.port)

    @property
    def where(self) -> str:
        """All AMQP addresses, for a sentence."""
        *most, last = [one.amqp_name for one in self.amqp_nodes]
        return f"{', '.join(most)} or {last}" if most else last

    @property
    def account(self) -> str:
        """The account of Delayboard in RabbitMQ, for a sentence."""
        match self.sign_in:
            case SignIn.CERTIFICATE:
                return "the client certificate"
            case SignIn.TOKEN:
                return f"the access token of the client “{self.username}”"
        return f"the user “{self.username}”"

    @property
    def amqp_nodes(self) -> tuple[Address, ...]:
        """The address of each node alone, as AMQP is spoken."""
        return tuple(
            replace(self, host=host, port=port, others=())
            for host, port in ((self.host, self.port), *self.others)
        )

    @property
    def management_nodes(self) -> tuple[Address, ...]:
        """The address of each node alone, as the management API is called.

        Where each node has both, in the same order, with its AMQP address.
        """
        urls = (self.management_url, *self.other_management_urls)
        owners = self.amqp_nodes if len(urls) == len(self.amqp_nodes) else [self] * len(urls)
        return tuple(
            replace(owner, management_url=url, other_management_urls=())
            for owner, url in zip(owners, urls, strict=True)
        )

    def ssl_context(self) -> ssl.SSLContext:
        """A client context for both protocols. Raises AddressError on unusable PEM text."""
        try:
            context = ssl.create_default_context(cadata=self.ca_certificate or None)
        except ssl.SSLError as error:
            raise AddressError("The CA certificate is not readable PEM text.") from error
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate:
            load_client_certificate(context, self.client_certificate, self.client_key)
        return context


def load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Raises AddressError for text that is no certificate, or a key that does not belong to it.

    OpenSSL reads both from a file: this one is only in memory, and no other user can open it.
    """
    file = os.memfd_create("client certificate")
    try:
        os.write(file, f"{certificate.strip()}\n{key.strip()}\n".encode())
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password="")
    except (ssl.SSLError, ValueError) as error:
        if "MISMATCH" in str(error):
            sentence = "The private key does not belong to the client certificate."
        elif "ENCRYPTED" in key:
            sentence = "The private key has a passphrase. Remove the passphrase from the key."
        else:
            sentence = "The client certificate or its private key is not readable PEM text."
        raise AddressError(sentence) from error
    finally:
        os.close(file)


def parse_hosts(text: str, *, tls: bool) -> list[tuple[str, int]]:
    """Read hosts with optional ports, separated by commas or blanks: each once, in order.

    Raises AddressError.
    """
    found: dict[tuple[str, int], None] = {}
    for each in text.replace(",", " ").split():
        sentence = f"“{each}” is not an address. Enter a host, or host:port."
        if "@" in each:
            # It may have a password.
            sentence = "An address is a host, or host:port, without user name and password."
        is_bare_ipv6 = each.count(":") > 1 and not each.startswith("[")
        parts = _split(f"//[{each}]" if is_bare_ipv6 else f"//{each}", sentence)
        if not parts.hostname or parts.path or parts.query or parts.fragment or "@" in each:
            raise AddressError(sentence)
        try:
            port = parts.port
        except ValueError as error:
            sentence = "The port in the broker's address is not a number up to 65535."
            raise AddressError(sentence) from error
        if port == 0:
            raise AddressError("The port in the broker's address is 0. Enter 1 to 65535.")
        found[parts.hostname, port or (AMQPS_PORT if tls else AMQP_PORT)] = None
    return list(found)


def parse_management_urls(text: str) -> list[str]:
    """Read http[s] addresses, separated by commas or blanks: each once, in order.

    Raises AddressError.
    """
    found = [each.rstrip("/") for each in text.replace(",", " ").split()]
    for each in found:
        check_management_url(each)
    return list(dict.fromkeys(found))


def format_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(amqp_url: str, management_urls: str = "") -> Address:
    """Read amqp[s]://user:password@host[:port]/vhost and http[s]://host:port.

    Each may have the addresses of several nodes: hosts separated by commas as in
    amqp://user:password@one:5672,two:5672/vhost, and management addresses separated by commas; ""
    means the default ones. Raises AddressError, also for options: Delayboard sets what they are
    about itself.

    As in RabbitMQ's URI specification a missing path is the vhost "/", and "/" alone too,
    since nobody means the vhost with the empty name.
    """
    sentence = "The broker's address must look like amqp://user:password@host/vhost."
    # `urlsplit` reads one host only: the others are taken out first.
    authority = re.split(r"[/?#]", amqp_url.partition("://")[2], maxsplit=1)[0]
    account, at, hosts = authority.rpartition("@")
    with_one = f"{account}{at}{hosts.strip(', ').partition(',')[0]}"
    parts = _split(amqp_url.replace(authority, with_one, 1) if authority else amqp_url, sentence)
    if parts.scheme not in ("amqp", "amqps") or not hosts.strip(", "):
        raise AddressError(sentence)
    if parts.query or parts.fragment:
        raise AddressError(
            "The broker's address has options behind “?” or “#”, and Delayboard takes none there. "
            "Remove them, or write %3F for ? and %23 for # in names and passwords."
        )
    tls = parts.scheme == "amqps"
    (host, port), *others = parse_hosts(hosts, tls=tls)
    urls = parse_management_urls(management_urls)
    management_url, *other_urls = urls or default_management_urls([(host, port), *others], tls=tls)
    username, _, password = account.partition(":")
    return Address(
        host=host,
        port=port,
        vhost=unquote(parts.path[1:]) or "/",
        username=unquote(username or "guest"),
        password=unquote(password or "guest"),
        management_url=management_url,
        tls=tls,
        others=tuple(others),
        other_management_urls=tuple(other_urls),
    )


def default_management_urls(hosts: Sequence[tuple[str, int]], *, tls: bool) -> list[str]:
    """Where the management plugin of each host answers unless configured otherwise."""
    scheme, port = ("https", 15671) if tls else ("http", 15672)
    return list(dict.fromkeys(f"{scheme}://{format_host_port(host, port)}" for host, _ in hosts))


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


@dataclass(frozen=True)
class Certificate:
    """`subject` as RFC 4514 writes it; `expires_at` in UTC."""

    subject: str
    expires_at: datetime


@lru_cache(maxsize=64)
def read_certificates(pem: str) -> Sequence[Certificate]:
    """Read all certificates in the text, in order. Raises AddressError."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        return [Certificate(x.subject.rfc4514_string(), x.not_valid_after_utc) for x in found]
    except ValueError as error:
        raise AddressError("The certificate is not readable PEM text.") from error
