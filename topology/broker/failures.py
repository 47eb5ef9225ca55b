"""Why nobody answers at a broker's address: one sentence for each cause, for both protocols."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import requests
import urllib3

from topology.broker.address import Address
from topology.broker.errors import Unreachable

# OpenSSL's name of an alert or failure in the texts of Python and pika.
_TLS_REASON = re.compile(r"\[SSL: (\w+)\]")
# Begin of the answer of a TLS port and of an AMQP port to a request in HTTP.
_TLS_ALERT, _AMQP = "\x15\x03", "AMQP"
PROBE_SECONDS = 0.5


def explain_amqp(error: BaseException, address: Address) -> Unreachable | None:
    """The sentence for what pika reported, or for what caused it; None for another cause."""
    return _explain(error, address.where, address.host, bool(address.client_certificate))


def explain_management(error: BaseException, address: Address) -> Unreachable:
    """The sentence for what requests or urllib3 reported, or for what caused it.

    Where nothing listens it looks for half a second whether AMQP answers.
    """
    url = address.management_url
    if _has(error, ConnectionRefusedError) and not address.others and _is_listening(address):
        return Unreachable(
            f"RabbitMQ runs, but nothing listens at {url}. Check the management port, and run "
            "`rabbitmq-plugins enable rabbitmq_management`."
        )
    has_certificate = bool(address.client_certificate)
    if known := _explain(error, url, urlsplit(url).hostname or "", has_certificate):
        return known
    if _has(error, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        return explain_timeout(address)
    if _has(error, ConnectionError):
        return Unreachable(
            f"The server at {url} closed the connection without an answer. Check the address (http "
            "or https, and the port, which is not that of AMQP)."
        )
    if isinstance(error, urllib3.exceptions.HTTPError):
        return Unreachable(
            f"The management API at {url} sent an incomplete answer. Check for a proxy between "
            "Delayboard and RabbitMQ."
        )
    return Unreachable(
        f"The management API at {url} does not answer. Check the address (http or https, port)."
    )


def explain_timeout(address: Address) -> Unreachable:
    return Unreachable(
        f"The management API at {address.management_url} did not answer in time. Check the "
        "network and the load of RabbitMQ."
    )


def _explain(
    error: BaseException, where: str, host: str, has_certificate: bool
) -> Unreachable | None:
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return Unreachable(_explain_certificate(cause, where))
            case ConnectionRefusedError():
                return Unreachable(
                    f"Nothing listens at {where}. Check that RabbitMQ runs, and check the port."
                )
            case socket.gaierror(errno=socket.EAI_AGAIN):
                return Unreachable(
                    f"The name server did not answer for the host “{host}”. Check the network."
                )
            case socket.gaierror() | UnicodeError():
                return Unreachable(f"The host “{host}” does not exist. Check the host name.")
            case http.client.BadStatusLine(args=(str(line),)) if line.startswith(_TLS_ALERT):
                return Unreachable(f"The port of {where} needs TLS. Enter an address with https.")
            case http.client.BadStatusLine(args=(str(line),)) if line.startswith(_AMQP):
                return Unreachable(
                    f"The port of {where} is for AMQP. Enter the port of the management API "
                    "(15672, or 15671 with TLS)."
                )
    stated = _TLS_REASON.search(str(error))
    if stated or _has(error, ssl.SSLError):
        return Unreachable(_explain_tls(stated[1] if stated else "", where, has_certificate))
    return None


def _explain_certificate(error: ssl.SSLCertVerificationError, where: str) -> str:
    reason = str(error.verify_message).rstrip(".")
    # Of OpenSSL (x509_vfy.h).
    match getattr(error, "verify_code", 0):
        case 10:
            return f"The certificate of {where} or of its CA has expired. Renew the certificate."
        case 9:
            return (
                f"The certificate of {where} is not valid yet. Check the clocks of both computers, "
                "or renew the certificate."
            )
        case 62 | 64:
            return (
                f"The certificate of {where} is for another host ({reason}). Enter a host name "
                "that the certificate contains."
            )
    return f"The certificate of {where} is not trusted ({reason}). Enter the CA certificate."


def _explain_tls(reason: str, where: str, has_certificate: bool) -> str:
    if has_certificate and "ALERT" in reason:
        return (
            f"{where} refused the TLS connection ({reason}). Check that it trusts the CA of the "
            "client certificate, and its TLS versions and ciphers."
        )
    if "CERTIFICATE_REQUIRED" in reason:
        return (
            f"{where} requires a client certificate, and Delayboard has none. Enter a client "
            "certificate and its key."
        )
    if "ALERT" in reason:
        return (
            f"{where} refused the TLS connection ({reason}). Check its TLS versions and ciphers, "
            "and whether it requires a client certificate."
        )
    return f"{where} accepts no TLS connection. Check that TLS is enabled at this port."


def _is_listening(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), PROBE_SECONDS).close()
    except (OSError, UnicodeError):
        return False
    return True


def was_never_sent(error: BaseException) -> bool:
    """Whether the request that failed so never reached a server: no connection was made."""
    made_none = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    return _has(error, *made_none)


def _has(error: BaseException, *kinds: type[BaseException]) -> bool:
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, the outer ones first; each once."""
    found, waiting = set[int](), [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in found:
            continue
        found.add(id(one))
        yield one
        several = getattr(one, "exceptions", ())
        inside = (*one.args, getattr(one, "reason", None), getattr(one, "exception", None))
        for cause in (*inside, *several, one.__cause__, one.__context__):
            if isinstance(cause, BaseException):
                waiting.append(cause)
