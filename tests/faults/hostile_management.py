"""A management API that attacks whoever reads it: real HTTP on a real socket."""

from __future__ import annotations

import gzip
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TRICKLE_SECONDS = 0.1
# A hostile sender of no end stops here, so that a defect fails a test and not the machine.
MOST_SENT = 400_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Attack = Callable[["Visit"], None]


@dataclass
class Visit:
    """One request: what was asked for, and how to answer."""

    socket: socket.socket
    path: str
    authorization: str
    stop: threading.Event
    port: int

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def trickle(self, data: Iterator[bytes]) -> None:
        for piece in data:
            if self.stop.wait(TRICKLE_SECONDS):
                return
            self.send(piece)

    def flood(self, piece: bytes) -> None:
        sent = 0
        while sent < MOST_SENT and not self.stop.is_set():
            self.send(piece)
            sent += len(piece)

    def answer(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
        lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


@dataclass
class Hostile:
    """The running server; `attack` may be exchanged while it runs. `visits` counts requests."""

    url: str
    attack: Attack
    stop: threading.Event = field(default_factory=threading.Event)
    visits: int = 0
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def hostile_management(attack: Attack) -> Iterator[Hostile]:
    """Run the server at a free port of 127.0.0.1 for the length of a block."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while (first := self.rfile.readline(65_536)).strip():
                    headers = {}
                    while (line := self.rfile.readline(65_536)).strip():
                        name, _, value = line.decode("latin-1").partition(":")
                        headers[name.lower()] = value.strip()
                    self.rfile.read(int(headers.get("content-length", "0")))
                    path = first.split()[1].decode()
                    authorization = headers.get("authorization", "")
                    hostile.visits += 1
                    if path.startswith("/elsewhere"):
                        hostile.elsewhere.append(authorization)
                    visit = Visit(self.request, path, authorization, hostile.stop, port)
                    hostile.attack(visit)
                    if hostile.attack in ENDING:
                        return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 100

    with Server(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        hostile = Hostile(f"http://127.0.0.1:{port}", attack)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hostile
        finally:
            hostile.stop.set()
            server.shutdown()
            thread.join(60)


def forever(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


# Answers of a small, sound broker, by the first part of the path.
SOUND: dict[str, Any] = {
    "overview": {"rabbitmq_version": "4.0.5", "node": "rabbit@hostile", "cluster_name": "c"},
    "queues": [{"name": "dead", "type": "classic", "durable": True, "messages": 1}],
    "exchanges": [{"name": "work", "type": "direct", "durable": True}],
    "bindings": [
        {
            "source": "work",
            "destination": "dead",
            "destination_type": "queue",
            "routing_key": "k",
        }
    ],
    "health": {"status": "ok"},
    "nodes": [{"name": "rabbit@hostile", "running": True, "partitions": []}],
    "policies": [],
    "operator-policies": [],
    "consumers": [],
    "vhosts": {"name": "nowhere", "tracing": True, "tags": [], "description": ""},
}
LISTS = ("queues", "exchanges", "bindings")


def saying(**changed: Any) -> Attack:
    """Sound answers but for these parts; what is asked for alone is the first of its list."""

    def answer(visit: Visit) -> None:
        parts = urlsplit(visit.path).path.split("/")[2:]
        value = {**SOUND, **changed}.get(parts[0], {})
        is_one = parts[0] in ("queues", "exchanges") and len(parts) == 3
        if is_one and isinstance(value, list):
            value = value[0]
        if len(parts) > 3 and "bindings" in parts:
            value = {**SOUND, **changed}["bindings"]
        if "page=1" in visit.path and isinstance(value, list):
            value = {"total_count": len(value), "items": value[:1]}
        visit.answer(value if isinstance(value, bytes) else json.dumps(value).encode())

    return answer


def row(kind: str, **changed: Any) -> Attack:
    """Sound answers with one more object in a list."""
    return saying(**{kind: [*SOUND[kind], {**SOUND[kind][0], "name": "odd", **changed}]})


def trickle_body(visit: Visit) -> None:
    visit.send(HEAD + b"Content-Length: 100000\r\n\r\n[")
    visit.trickle(forever(b" "))


def trickle_headers(visit: Visit) -> None:
    visit.send(HEAD + b"X-Long: ")
    visit.trickle(forever(b"x"))


def send_headers_forever(visit: Visit) -> None:
    visit.send(HEAD)
    visit.flood(b"X-More: " + b"x" * 1000 + b"\r\n")


def send_interim_answers_forever(visit: Visit) -> None:
    visit.flood(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def send_chunks_forever(visit: Visit) -> None:
    visit.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    visit.flood(b"10000\r\n" + b" " * 65_536 + b"\r\n")


def send_chunk_size_forever(visit: Visit) -> None:
    visit.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    visit.flood(b"0" * 65_536)


def send_without_end(visit: Visit) -> None:
    visit.send(HEAD + b"\r\n[")
    visit.flood(b" " * 65_536)


_BOMB = gzip.compress(b"[" + b" " * 40_000_000 + b"]")


def send_gzip_bomb(visit: Visit) -> None:
    visit.answer(_BOMB, "Content-Encoding: gzip")


def send_damaged_gzip(visit: Visit) -> None:
    visit.answer(_BOMB[:300], "Content-Encoding: gzip")


def send_brotli(visit: Visit) -> None:
    visit.answer(b"\x8b\x03\x80", "Content-Encoding: br")


def send_deep(visit: Visit) -> None:
    visit.answer(b"[" * 60_000 + b"]" * 60_000)


def send_tiny_values(visit: Visit) -> None:
    visit.answer(b"[" + b"{}," * 300_000 + b"{}]")


def send_html(visit: Visit) -> None:
    page = b"<html>Sign in</html>"
    visit.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")
    visit.send(b"Content-Length: %d\r\n\r\n%b" % (len(page), page))


def send_truncated(visit: Visit) -> None:
    visit.send(HEAD + b"Content-Length: 1000\r\n\r\n[{}")


def redirect(visit: Visit) -> None:
    visit.answer(b"", f"Location: http://127.0.0.1:{visit.port}/elsewhere", status="302 Found")


def send_noise(visit: Visit) -> None:
    visit.send(bytes(range(256)) * 20)


# After these the server ends the connection.
ENDING = frozenset({send_truncated, send_noise, send_chunks_forever, send_without_end})

NOT_IN_TIME = "did not answer in time"
TOO_LARGE = "above the limit of 1 MB"
NO_UNICODE = "text that is not valid Unicode"
TOO_DEEP = "nested more than 100 levels"
NO_API = "does not come from a management API"
ANOTHER = "an unexpected answer"

# Each attack with words of the one sentence that every page says about it.
ATTACKS: dict[str, tuple[Attack, str]] = {
    "a body of one byte at a time": (trickle_body, NOT_IN_TIME),
    "headers of one byte at a time": (trickle_headers, NOT_IN_TIME),
    "headers without end": (send_headers_forever, "does not answer. Check the address"),
    "chunks without end": (send_chunks_forever, TOO_LARGE),
    "a gzip bomb": (send_gzip_bomb, TOO_LARGE),
    "sixty thousand levels": (send_deep, TOO_DEEP),
    "half of a surrogate pair": (row("queues", name="a\ud83d"), NO_UNICODE),
    "a page of HTML": (send_html, NO_API),
    "a body that ends early": (send_truncated, "incomplete answer"),
    "a redirect": (redirect, "a redirect to another address"),
    "a list for an object": (saying(overview=[]), ANOTHER),
    "a number for a name": (row("queues", name=5), "“name” is not text"),
    "a text for a number": (row("queues", messages="many"), "“messages” is not a number"),
}

# More of the same kinds, for which no page is opened.
MORE_ATTACKS: dict[str, tuple[Attack, str]] = {
    "interim answers without end": (send_interim_answers_forever, TOO_LARGE),
    "a chunk size without end": (send_chunk_size_forever, "incomplete answer"),
    "a body without end": (send_without_end, TOO_LARGE),
    "a damaged gzip": (send_damaged_gzip, "damaged gzip"),
    "an encoding that nobody asked for": (send_brotli, "uses the encoding “br”"),
    "five hundred levels": (
        row("queues", arguments={"x": json.loads("[" * 500 + "]" * 500)}),
        TOO_DEEP,
    ),
    "very many tiny values": (send_tiny_values, TOO_LARGE),
    "half of a surrogate pair in a key": (row("bindings", routing_key="\udc00"), NO_UNICODE),
    "bytes that are no UTF-8": (saying(queues=b'[{"name":"\xff"}]'), NO_UNICODE),
    "noise": (send_noise, "does not answer. Check the address"),
    "an object for a list": (saying(queues={"a": 1}), ANOTHER),
    "texts in a list of objects": (saying(exchanges=["a"]), ANOTHER),
    "a list for a key": (row("bindings", routing_key=[]), "“routing_key” is not text"),
    "a long name": (row("queues", name="n" * 300), "“name” has more than 255 bytes"),
    "a text for arguments": (row("queues", arguments="x"), "“arguments” is not an object"),
}

# Odd, but read: what cannot be right is unknown, and the rest of the broker is shown.
ODD: Mapping[str, Attack] = {
    "no numbers": row("queues", messages=None, consumers=None, message_stats=None),
    "numbers below zero": row("queues", messages=-5, consumers=-1, message_bytes=-1),
    "numbers beyond 64 bits": row(
        "queues",
        messages=2**64 - 1,
        consumers=2**70,
        message_stats={"publish": 2**64 - 1, "publish_details": {"rate": 1e300}},
    ),
    "arguments beyond every limit": row(
        "queues",
        arguments={
            "x-message-ttl": 2**64 - 1,
            "x-expires": -(2**63),
            "x-max-length": 2**70,
            "x-delivery-limit": -(2**63),
            "x-dead-letter-exchange": "work\x00",
            "x-dead-letter-routing-key": "<script>",
            "x-queue-type": "\u202esand",
        },
    ),
    "a name with a zero": row("queues", name="a\x00b"),
    "a version of many digits": saying(
        overview={"rabbitmq_version": "9" * 5000 + ".1", "node": 5, "cluster_name": [1]}
    ),
    "names of every kind": saying(
        exchanges=[{"name": "work", "type": 5}, {"name": "", "type": None}, {}],
        bindings=[{"source": "gone", "destination": "dead", "destination_type": 5}, {}],
    ),
    "objects for scalars": saying(
        queues=[{"name": "dead", "type": {}, "state": [], "policy": {"a": 1}, "node": 1.5}],
        health=[],
        nodes=[{"name": {}, "running": "no", "partitions": [5, {}]}, {}, {"running": False}],
        vhosts={"tracing": "yes", "tags": {}, "metadata": 5},
    ),
}
