"""A server that gives answers of a list, in place of the API and of a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple, TypeAlias

# Status, body, headers; status 0 closes the connection.
Answer: TypeAlias = tuple[int, bytes, Mapping[str, str]]


class Asked(NamedTuple):
    what: str
    body: bytes
    headers: Message


@contextmanager
def answering(answers: Mapping[str, Sequence[Answer]]) -> Iterator[tuple[str, list[Asked]]]:
    """Its address, and what it is asked: "GET brokers", a path below /api/v1/ without its query.

    The last answer of a list is repeated.
    """
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].removeprefix("/api/v1/")
            what = f"{self.command} {path}"
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            some, number = answers[what], sum(one.what == what for one in asked)
            asked.append(Asked(what, body, self.headers))
            status, content, headers = some[min(number, len(some) - 1)]
            if not status:
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
