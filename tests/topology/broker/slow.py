"""A broker at 127.0.0.1:9 that takes as long as a test likes to list its queues."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import requests
import responses

from tests.builders import eventually
from topology import snapshots

API = "http://127.0.0.1:9/api"


class Slow:
    """A management API that answers its overview at once and lists its queues when it is let."""

    def __init__(self) -> None:
        self.listing = 0
        self.most_at_once = 0
        self.lists = threading.Event()
        self._at_it = 0
        self._guard = threading.Lock()
        self._let = threading.Semaphore(0)
        overview = {"rabbitmq_version": "4.3.6", "node": "lone@node"}
        responses.get(f"{API}/overview", json=overview)
        responses.add_callback("GET", f"{API}/queues/nowhere", self._queues)
        for kind in ("exchanges", "bindings"):
            responses.get(f"{API}/{kind}/nowhere", json=[])
        responses.get(f"{API}/nodes", json=[{"name": "lone@node", "running": True}])
        responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})

    def let(self, times: int = 1) -> None:
        self._let.release(times)

    @property
    def overviews(self) -> int:
        return sum(str(call.request.url).endswith("/overview") for call in responses.calls)

    def _queues(self, request: requests.PreparedRequest) -> tuple[int, dict[str, str], str]:
        with self._guard:
            self.listing += 1
            self._at_it += 1
            self.most_at_once = max(self.most_at_once, self._at_it)
        self.lists.set()
        assert self._let.acquire(timeout=20)
        with self._guard:
            self._at_it -= 1
        return 200, {}, '[{"name": "one"}]'


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(snapshots, "AFTERWARDS_SECONDS", 0.1)
    with responses.mock:
        one = Slow()
        yield one
        one.let(100)
        eventually(lambda: not snapshots._polls, "every poll ends")
    responses.mock.reset()
