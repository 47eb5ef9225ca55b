"""A broker that takes long to read, as a person sees it come."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, WebSocket, expect

from tests.browser.sign_in import sign_in
from tests.builders import make_broker
from topology import snapshots
from topology.broker.management.client import Management
from topology.models import Broker

QUEUES = 3_000
# Pages of a broker.
PARTS = ("", "discovered/", "trace-route/", "diagram/")


class Slow(ThreadingHTTPServer):
    """A management API that lists its queues when it is let; `depth` is that of each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.let = threading.Event()
        self.depth = 1

    def reported(self, path: str) -> Any:
        if path == "/api/overview":
            return {"rabbitmq_version": "4.3.6", "node": "a@b"}
        if path.startswith("/api/queues/"):
            self.let.wait(60)
            return [
                {"name": f"q{number:04}", "type": "classic", "messages": self.depth, "consumers": 0}
                for number in range(QUEUES)
            ]
        return {"status": "ok"} if path.startswith("/api/health") else []


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Slow)
        body = json.dumps(self.server.reported(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.let.set()
        server.shutdown()
        thread.join(60)


@pytest.fixture
def broker(transactional_db: None, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> Broker:
    # The listing may be held back for longer than a call may take.
    monkeypatch.setattr(Management.__init__, "__kwdefaults__", {"seconds": 40.0, "in_all": 600.0})
    row = make_broker(name="Vast")
    row.management_urls = f"http://127.0.0.1:{slow.server_port}"
    row.save()
    return row


def test_pages_say_that_the_broker_is_being_read_and_show_it_by_themselves(
    page: Page, site_url: str, broker: Broker, slow: Slow, ada: User
) -> None:
    sign_in(page.context, ada, site_url)
    pages = [page, *(page.context.new_page() for _ in PARTS[1:])]
    for tab, part in zip(pages, PARTS, strict=True):
        tab.goto(f"/brokers/{broker.slug}/{part}")
        said = tab.locator("[data-live-reading]")
        expect(said).to_be_visible()
        expect(said).to_contain_text("The broker answers. The first read is in progress")
        expect(tab.locator("[data-live-trouble]")).to_be_hidden()
    slow.let.set()
    for tab in pages:
        expect(tab.locator("p.age").first).to_be_visible(timeout=40_000)
        expect(tab.locator("p.age").first).to_contain_text("RabbitMQ 4.3.6")
        expect(tab.locator("[data-live-reading]")).to_be_hidden()


def test_a_page_of_many_queues_is_sent_little_and_stays_true(
    page: Page, site_url: str, broker: Broker, slow: Slow, ada: User
) -> None:
    slow.let.set()
    snapshots.poll(broker, 20)
    sent: list[int] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: sent.append(len(frame)))

    page.on("websocket", listen)
    sign_in(page.context, ada, site_url)
    page.goto(f"/brokers/{broker.slug}/")
    cell = page.locator('tr[data-key="q0007"] [data-label="Messages"]')
    expect(cell).to_have_text("1")
    slow.depth = 4711
    # On a busy machine its polls are slow ones, after which it rests.
    expect(cell).to_have_text("4\u202f711", timeout=40_000)
    assert sent
    assert max(sent) < 50_000
