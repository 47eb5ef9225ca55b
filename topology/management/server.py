"""The API of a Delayboard elsewhere, for commands that have no database: CI, agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django.core.management.base import CommandError, CommandParser

from topology.management.exit_codes import BadInput, ExitCode

# The longest action of the site, and then some.
SECONDS = 60
# The answer is no; every other error is of the request, or no answer.
NO = (403, 409)


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

    def call(
        self, method: str, path: str, values: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The document at `/api/v1/<path>`, a quoted path. Raises CommandError."""
        query = f"?{urlencode(values)}" if values else ""
        data = None if method == "GET" else json.dumps({} if body is None else body).encode()
        request = Request(
            f"{self.address}/api/v1/{path}{query}",
            data,
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with build_opener(_NoRedirects).open(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                sentence = _read_detail(error) or f"The server answered {error.code}."
                code = ExitCode.NO if error.code in NO else ExitCode.NOT_RUN
            raise CommandError(sentence, returncode=code) from error
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", error)
            raise CommandError(
                f"{self.address} did not answer: {why}. Check --server.",
                returncode=ExitCode.NOT_RUN,
            ) from error


def add_server(parser: CommandParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", help="work through the API of this Delayboard; needs no database"
    )
    parser.add_argument("--token-file", metavar="F", help="a file with a token for --server")


def open_server(options: Mapping[str, Any]) -> Server | None:
    """None without --server. Raises BadInput."""
    address, file = options["server"], options["token_file"]
    if address is None:
        if file is not None:
            raise BadInput("--token-file goes with --server.")
        return None
    if urlsplit(address).scheme not in ("http", "https"):
        raise BadInput("--server needs an address such as https://board.example.com.")
    if file is None:
        raise BadInput("--server needs --token-file. The page Tokens creates a token.")
    try:
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"The file {file} was not read: {error}.") from error
    if not token.isascii() or not token.isprintable() or not token:
        raise BadInput(f"The file {file} has no token.")
    return Server(address.rstrip("/"), token)


def _read_detail(answer: IO[bytes]) -> str:
    """The sentence of a problem; "" where there is none."""
    try:
        found = json.load(answer)
    except ValueError:
        return ""
    return str(found.get("detail", "")) if isinstance(found, dict) else ""
