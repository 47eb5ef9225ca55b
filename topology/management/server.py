"""The API of a Delayboard elsewhere, for commands that have no database: CI, agents."""

from __future__ import annotations

import json
import socket
import ssl
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import uuid4

from django.core.management.base import CommandError, CommandParser

from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode

# Seconds for an answer of the site: more than its longest action takes.
SECONDS = 60
# Statuses that say no; every other error is about the request, or no answer.
NO = (403, 409)
# Statuses that say nothing of an earlier request with the same key; those from 500 on neither.
NO_ANSWER = (401, 403, 413, 429)
# Seconds before a change whose answer was lost is sent again.
PAUSES = (0.5, 2, 5)
# Most times that a request is sent again after 429, and seconds before each: nothing was done.
MOST_WAITS = 5
LONGEST_WAIT = 60
# Seconds between two readings of what goes on there, and for which the site may not answer them.
WATCH_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
PROBLEM = "application/problem+json"
NOT_KNOWN = "It is not known whether it was done."
# Errors after which nothing was sent.
NOT_CONNECTED = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)


class _NoRedirects(HTTPRedirectHandler):
    """The token must not go to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Server:
    """`address` is that of the site."""

    address: str
    token: str

    def get(self, path: str, values: Mapping[str, Any] | None = None) -> Any:
        return self.call("GET", path, values)

    def post(self, path: str, body: Any = None, values: Mapping[str, Any] | None = None) -> Any:
        return self.call("POST", path, values, body)

    def read_pages(self, path: str, values: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """The items of a list, page after page. Raises CommandError."""
        after: str | None = ""
        while after is not None:
            page = self.get(path, {**(values or {}), "after": after})
            yield from page["items"]
            after = page["next"]

    def watch(
        self,
        path: str,
        what: str,
        is_over: Callable[[Any], bool],
        stop: Event,
        report: Callable[[Any], object] = lambda _: None,
        patience: float = PATIENCE_SECONDS,
    ) -> Any:
        """Read the document, and report it, until it `is_over` or `stop` is set.

        Raises CommandError: `what` is not known, when nobody answered for `patience` seconds.
        """
        until = time.monotonic() + patience
        while True:
            try:
                found = self.get(path)
            except CommandError as error:
                if time.monotonic() > until or stop.is_set():
                    sentence = f"It is not known {what}. {error}"
                    raise CommandError(sentence, returncode=ExitCode.UNKNOWN) from error
            else:
                until = time.monotonic() + patience
                if stop.is_set() or is_over(found):
                    return found
                report(found)
            stop.wait(WATCH_SECONDS)

    def call(
        self, method: str, path: str, values: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The document at `/api/v1/<path>`, a quoted path. `body` is a document, or bytes.

        A change whose answer is lost is sent again with the same Idempotency-Key: the API makes it
        once. Raises CommandError.
        """
        data, key = None, ""
        if method != "GET":
            data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
            key = str(uuid4())
        lost: CommandError | None = None
        for pause in (*PAUSES, 0):
            try:
                return json.loads(b"".join(self.read(method, path, values, data, key)))
            except Refused as error:
                if lost is None or (error.status < 500 and error.status not in NO_ANSWER):
                    raise
            except CommandError as error:
                lost = error if error.returncode == ExitCode.UNKNOWN else lost
                if lost is None:
                    raise
            except ValueError as error:
                raise self._fail(error, _may_change(method, values)) from error
            time.sleep(pause)
        assert lost is not None
        raise lost

    def read(
        self,
        method: str,
        path: str,
        values: Mapping[str, Any] | None = None,
        data: bytes | None = None,
        key: str = "",
        heads: dict[str, str] | None = None,
    ) -> Iterator[bytes]:
        """The lines of an answer, as they arrive; `heads` gets its headers by names in lower case.

        Raises CommandError.
        """
        query = f"?{urlencode(values, doseq=True)}" if values else ""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        address = f"{self.address}/api/v1/{path}{query}"
        request = Request(address, data, headers, method=method)
        may_change = _may_change(method, values)
        for left in range(MOST_WAITS, -1, -1):
            try:
                answer: HTTPResponse
                with build_opener(_NoRedirects).open(request, timeout=SECONDS) as answer:
                    if heads is not None:
                        heads.update((name.lower(), text) for name, text in answer.headers.items())
                    yield from answer
                return
            except HTTPError as error:
                with error:
                    seconds = error.headers.get("Retry-After", "")
                    if error.code != 429 or not seconds.isdecimal() or not left:
                        raise _read_refusal(error, may_change) from error
            except (OSError, HTTPException, ValueError) as error:
                raise self._fail(error, may_change) from error
            time.sleep(min(int(seconds), LONGEST_WAIT))

    def _fail(self, error: Exception, may_change: bool) -> CommandError:
        why = getattr(error, "reason", error)
        text = f"{self.address} did not answer: {why}."
        if not may_change or isinstance(why, NOT_CONNECTED):
            return CommandError(f"{text} Check --server.", returncode=ExitCode.NOT_RUN)
        return CommandError(f"{text} {NOT_KNOWN}", returncode=ExitCode.UNKNOWN)


class Refused(CommandError):
    """The API answered a problem; `errors` has a sentence for each wrong field."""

    def __init__(self, sentence: str, status: int, errors: Mapping[str, str]) -> None:
        super().__init__(sentence, returncode=ExitCode.NO if status in NO else ExitCode.NOT_RUN)
        self.status, self.errors = status, errors


class ServedCommand(BoardCommand):
    """A command that works here, or with --server through the API of a Delayboard elsewhere."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        add_server(parser)
        return parser

    def handle(self, *args: Any, **options: Any) -> None:
        if server := open_server(options):
            self.ask(server, options)
        else:
            self.work(options)

    @abstractmethod
    def work(self, options: Mapping[str, Any]) -> None:
        """Do it here. Raises what `execute` may."""

    @abstractmethod
    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        """Do it through the API, and print the same. Raises CommandError."""


def add_server(parser: CommandParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", help="work through the API of this Delayboard; needs no database"
    )
    parser.add_argument("--token-file", metavar="F", help="a file with a token for --server")
    parser.add_argument(
        "--insecure", action="store_true", help="send the token to an address without https"
    )


def open_server(options: Mapping[str, Any]) -> Server | None:
    """None without --server. Raises BadInput."""
    address, file = options["server"], options["token_file"]
    if address is None:
        if file is not None:
            raise BadInput("--token-file goes with --server.")
        return None
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("--server needs an address such as https://board.example.com.")
    if parts.scheme == "http" and not options["insecure"] and not _is_loopback(parts.hostname):
        raise BadInput("The token would be sent unencrypted. Use https in --server, or --insecure.")
    if file is None:
        raise BadInput("--server needs --token-file. The page Tokens creates a token.")
    try:
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"The file {file} was not read: {error}.") from error
    if not token.isascii() or not token.isprintable() or not token:
        raise BadInput(f"The file {file} has no token.")
    return Server(address.rstrip("/"), token)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _may_change(method: str, values: Mapping[str, Any] | None) -> bool:
    return method != "GET" and (values or {}).get("dry_run") not in (True, "true")


def _read_refusal(answer: HTTPError, may_change: bool) -> CommandError:
    """What the API refuses; unknown where it says so, where the first request with this key has no
    answer yet, and where a proxy answers for the site.
    """
    try:
        found = json.load(answer)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) else {}
    sentence = str(problem.get("detail") or f"The server answered {answer.code}.")
    is_waiting = answer.code == 409 and "Retry-After" in answer.headers
    is_of_proxy = answer.code >= 500 and answer.headers.get_content_type() != PROBLEM
    if may_change and (is_waiting or is_of_proxy or problem.get("is_unknown")):
        return CommandError(f"{sentence} {NOT_KNOWN}", returncode=ExitCode.UNKNOWN)
    errors = problem.get("errors")
    named = errors.items() if isinstance(errors, dict) else ()
    return Refused(sentence, answer.code, {str(name): str(text) for name, text in named})
