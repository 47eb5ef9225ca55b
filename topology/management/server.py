"""The API of a Delayboard elsewhere, for commands that have no database: CI, agents."""

from __future__ import annotations

import json
import socket
import ssl
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django.core.management.base import CommandError, CommandParser

from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode

# The longest action of the site, and then some.
SECONDS = 60
# The answer is no; every other error is of the request, or no answer.
NO = (403, 409)
# Nothing was sent.
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

    def call(
        self, method: str, path: str, values: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The document at `/api/v1/<path>`, a quoted path. `body` is a document, or bytes.

        Raises CommandError.
        """
        data = (
            body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        )
        parts = self.read(method, path, values, None if method == "GET" else data)
        try:
            return json.loads(b"".join(parts))
        except ValueError as error:
            raise self._fail(error, method) from error

    def read(
        self,
        method: str,
        path: str,
        values: Mapping[str, Any] | None = None,
        data: bytes | None = None,
    ) -> Iterator[bytes]:
        """The lines of an answer, as they arrive. Raises CommandError."""
        query = f"?{urlencode(values)}" if values else ""
        request = Request(
            f"{self.address}/api/v1/{path}{query}",
            data,
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            answer: HTTPResponse
            with build_opener(_NoRedirects).open(request, timeout=SECONDS) as answer:
                yield from answer
        except HTTPError as error:
            with error:
                sentence = _read_detail(error) or f"The server answered {error.code}."
                code = ExitCode.NO if error.code in NO else ExitCode.NOT_RUN
            raise CommandError(sentence, returncode=code) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._fail(error, method) from error

    def _fail(self, error: Exception, method: str) -> CommandError:
        why = getattr(error, "reason", error)
        text = f"{self.address} did not answer: {why}."
        if method == "GET" or isinstance(why, NOT_CONNECTED):
            return CommandError(f"{text} Check --server.", returncode=ExitCode.NOT_RUN)
        return CommandError(
            f"{text} It is not known whether it was done.", returncode=ExitCode.UNKNOWN
        )


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


def _read_detail(answer: IO[bytes]) -> str:
    """The sentence of a problem; "" where there is none."""
    try:
        found = json.load(answer)
    except ValueError:
        return ""
    return str(found.get("detail", "")) if isinstance(found, dict) else ""
