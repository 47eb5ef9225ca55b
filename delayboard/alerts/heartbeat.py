"""The address that the worker calls while it works: a monitor alerts when the calls end.

For Healthchecks, Cronitor, Uptime Kuma and others that take a plain GET.
"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event, Thread
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from delayboard.alerts.messages import AddressRefused
from delayboard.models.alert import Heartbeat
from delayboard.models.background_task import BackgroundTask

TIMEOUT_SECONDS = 10
LONGEST_ADDRESS = 1000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another host must not learn the address, which is a secret."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


class _Web(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps its connections, so that another thread can cut them."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[HTTPConnection] = []
        self.is_cut = False

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._noting(HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._noting(HTTPSConnection), req)

    def _noting(self, kind: type[HTTPConnection]) -> Callable[..., HTTPConnection]:
        def make(host: str, **values: Any) -> HTTPConnection:
            self.connections.append(kind(host, **values))
            return self.connections[-1]

        return make

    def cut(self, has_ended: Event) -> None:
        """Cut them when the time is over: a timeout of sockets begins again with each byte."""
        has_ended.wait(TIMEOUT_SECONDS)
        while not has_ended.wait(0.2):
            self.is_cut = True
            for one in self.connections:
                with suppress(OSError, AttributeError):
                    one.sock.shutdown(socket.SHUT_RDWR)


def check_web_address(text: str, example: str = "https://hc-ping.com/your-uuid") -> tuple[str, str]:
    """The address and its host, which pages show. Raises AddressRefused."""
    address = text.strip()
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
        host = "" if "@" in parts.netloc else host
    except ValueError:
        host = ""
    is_web = address.startswith(("http://", "https://")) and address.isascii()
    if not host or not is_web or " " in address or len(address) > LONGEST_ADDRESS:
        raise AddressRefused(f"Enter an address such as {example}.")
    return address, host


def call(
    address: str, body: bytes | None = None, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int | None, str]:
    """Send a GET, or a POST with a body; redirects are not followed.

    The status of the answer, None without one; and "" or why the request was not accepted, without
    the address. Ends soon after TIMEOUT_SECONDS, however slowly the answer comes.
    """
    web, has_ended = _Web(), Event()
    opener = urllib.request.build_opener(_NoRedirects, web)
    request = urllib.request.Request(address, body, {"User-Agent": "Delayboard", **headers})
    Thread(target=web.cut, args=(has_ended,), daemon=True).start()
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            if web.is_cut:
                # The end of the connection passes for the end of the headers.
                return None, f"The service did not answer within {TIMEOUT_SECONDS} s."
            return answer.status, ""
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, f"The service answered with {error.code}."
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return None, f"The service did not answer: {type(reason).__name__}."
    finally:
        has_ended.set()


def call_due(now: datetime) -> None:
    """Call the address when its time has come and every background task has a heartbeat.

    A task that hangs ends the calls, and so does a worker that is not running.
    """
    row = Heartbeat.objects.first()
    if row is None:
        return
    due_at = row.called_at + timedelta(seconds=row.every_seconds) if row.called_at else now
    if now < due_at or any(task.is_late for task in BackgroundTask.objects.all()):
        return
    try:
        _, error = call(row.address)
    except ValueError as wrong:
        error = str(wrong)
    Heartbeat.objects.filter(pk=row.pk).update(called_at=now, error=error[:500])
