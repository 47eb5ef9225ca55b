"""WebSockets hand on what the feed says to those who may see it."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from pytest_django import Settings

from delayboard.asgi import application
from delayboard.live import guard
from delayboard.live.consumers import NOT_SIGNED_IN, NOT_UNDERSTOOD
from delayboard.live.guard import NOT_ALLOWED
from delayboard.models import ReplayBatch
from tests.builders import eventually, make_broker, make_user
from tests.delayboard.builders import a_message, a_publication, parked
from tests.delayboard.replay_rows import a_batch
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.broker.management.client import Management
from topology.definitions import Definitions, Queue
from topology.models import Broker, Grant, Role
from topology.snapshot import QueueNumbers, Snapshot

SOON = 10.0


@pytest.fixture
def broker(transactional_db: None) -> Broker:
    return make_broker()


def running(key: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(f"feed of {key}")


def a_replay(broker: Broker) -> ReplayBatch:
    return a_batch(broker, parked(broker, a_message(b"1"), a_message(b"2")))


def cookie(user: User) -> list[tuple[bytes, bytes]]:
    client = Client()
    client.force_login(user)
    value = client.cookies[settings.SESSION_COOKIE_NAME].value
    return [(b"cookie", f"{settings.SESSION_COOKIE_NAME}={value}".encode())]


@asynccontextmanager
async def connected(
    path: str, user: User | None = None, origin: bytes = b"http://localhost"
) -> AsyncIterator[WebsocketCommunicator]:
    headers = await sync_to_async(cookie)(user) if user else []
    socket = WebsocketCommunicator(
        application, path, headers=[(b"origin", origin), (b"host", b"localhost"), *headers]
    )
    try:
        yield socket
    finally:
        await socket.disconnect()


async def reported(socket: WebsocketCommunicator, *keys: str) -> Any:
    """The next state, after the page said what it shows."""
    await socket.send_json_to({"type": "watch", "keys": list(keys)})
    return await socket.receive_json_from(timeout=SOON)


async def shown(socket: WebsocketCommunicator, *keys: str) -> Any:
    """The first state with values: on a busy machine the broker is read after the first ones."""
    state = await reported(socket, *keys)
    while not state["cells"]:
        state = await socket.receive_json_from(timeout=SOON)
    return state


async def closing_code(path: str, user: User | None) -> int:
    async with connected(path, user) as socket:
        accepted, _ = await socket.connect(timeout=SOON)
        assert accepted
        closed: dict[str, Any] = await socket.receive_output(timeout=SOON)
        assert closed["type"] == "websocket.close"
        return int(closed["code"])


def known_user(name: str, role: Role | None, broker: Broker) -> Callable[[], User]:
    return lambda: make_user(name, role, broker)


async def test_who_is_not_signed_in_is_turned_away(broker: Broker) -> None:
    assert await closing_code(f"/ws/brokers/{broker.slug}/", None) == NOT_SIGNED_IN


async def test_who_has_no_role_there_is_turned_away(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", None, broker))()
    assert await closing_code(f"/ws/brokers/{broker.slug}/", user) == NOT_ALLOWED


@pytest.mark.parametrize(
    "path", ["secrets/1", "brokers/none", "replays/%C2%B2", "publications/no-uuid"]
)
async def test_what_is_unknown_looks_like_what_is_forbidden(broker: Broker, path: str) -> None:
    user = await sync_to_async(known_user("ann", Role.ADMIN, broker))()
    assert await closing_code(f"/ws/{path}/", user) == NOT_ALLOWED


async def test_a_page_of_another_site_is_not_even_accepted(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.ADMIN, broker))()
    path = f"/ws/brokers/{broker.slug}/"
    async with connected(path, user, origin=b"http://evil.test") as socket:
        accepted, _ = await socket.connect(timeout=SOON)
        assert not accepted


async def test_a_viewer_is_told_the_state(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        accepted, _ = await socket.connect(timeout=SOON)
        assert accepted
        state = await reported(socket)
        assert (state["type"], state["seq"], state["done"]) == ("state", 1, False)
        assert "Nothing listens at" in state["error"]


async def test_a_publication_and_a_replay_are_told_too(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    publication = await sync_to_async(a_publication)(broker, after=timedelta(hours=1))
    batch = await sync_to_async(a_replay)(broker)
    for path, key in (
        (f"publications/{publication.pk}", "publication/status"),
        (f"replays/{batch.pk}", "replay/state"),
    ):
        async with connected(f"/ws/{path}/", user) as socket:
            await socket.connect(timeout=SOON)
            state = await reported(socket, key, "queue/other/messages")
            assert list(state["cells"]) == [key]


MANY = 10_000


class Numbers:
    """In place of `observe`: a vhost with so many queues, whose depths a test sets."""

    def __init__(self) -> None:
        self.depth = 1
        self.changing: dict[str, int] = {}

    def __call__(self, management: Management) -> Snapshot:
        objects = Definitions(queues=frozenset(Queue(f"q{n}") for n in range(MANY)))
        depths = dict.fromkeys((f"q{n}" for n in range(MANY)), self.depth) | self.changing
        return a_snapshot(objects, {n: QueueNumbers(messages=d) for n, d in depths.items()})


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Numbers:
    found = Numbers()
    monkeypatch.setattr(snapshots, "observe", found)
    settings.POLL_SECONDS = 0.05
    return found


async def test_a_page_of_ten_thousand_queues_is_sent_what_it_shows_and_then_what_changed(
    broker: Broker, numbers: Numbers
) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        assert await socket.receive_nothing()
        cells = [f"queue/q{n}/messages" for n in range(200)]
        first = await shown(socket, *cells, "queue/q7")
        assert first["cells"] == dict.fromkeys(cells, "1")
        assert first["marks"] == {"queue/q7": "busy"}
        numbers.changing = {"q7": 2, "q900": 3}
        while not (state := await socket.receive_json_from(timeout=SOON))["cells"]:
            assert len(json.dumps(state)) < 300
        assert state["cells"] == {"queue/q7/messages": "2"}
        assert state["marks"] == {}
        assert state["seq"] > first["seq"]


async def test_a_page_that_shows_other_things_than_before_is_sent_what_it_lacks(
    broker: Broker, numbers: Numbers
) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        assert (await shown(socket, "queue/q1/messages"))["cells"] == {"queue/q1/messages": "1"}
        await socket.send_json_to(
            {"type": "watch", "keys": ["queue/q1/messages", "queue/q2/messages", "queue/none"]}
        )
        while not (state := await socket.receive_json_from(timeout=SOON))["cells"]:
            pass
        assert state["cells"] == {"queue/q2/messages": "1"}


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"type": "watch"}',
        '{"type": "watch", "keys": "queue"}',
        '{"type": "watch", "keys": [1, {}]}',
        '{"type": "listen", "keys": []}',
    ],
)
async def test_who_says_something_else_is_turned_away(broker: Broker, said: str) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    for sent in ({"text_data": said}, {"bytes_data": said.encode()}):
        async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
            await socket.connect(timeout=SOON)
            await socket.send_to(**sent)
            closed = await socket.receive_output(timeout=SOON)
            assert (closed["type"], closed["code"]) == ("websocket.close", NOT_UNDERSTOOD)


async def test_the_first_page_is_told_of_the_brokers_it_shows_and_of_no_other(
    broker: Broker,
) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/now/{broker.pk}/", user) as socket:
        await socket.connect(timeout=SOON)
        state = await reported(socket, "count/scheduled", "count/overdue")
        assert state["cells"] == {"count/scheduled": "0", "count/overdue": "0"}
    other = await sync_to_async(make_broker)(name="Other")
    for name in (f"{other.pk}", f"{broker.pk},{other.pk}", "0", "x", ",", f"{broker.pk},"):
        assert await closing_code(f"/ws/now/{name}/", user) == NOT_ALLOWED


@pytest.mark.parametrize("lost", ["account", "password", "grant"])
async def test_a_right_that_is_taken_away_ends_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(guard, "CHECK_SECONDS", 0.05)
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        await reported(socket)
        if lost == "account":
            await User.objects.filter(pk=user.pk).aupdate(is_active=False)
        elif lost == "password":
            await User.objects.filter(pk=user.pk).aupdate(password="another")
        else:
            await Grant.objects.all().adelete()
        closed = await socket.receive_output(timeout=SOON)
        assert (closed["type"], closed["code"]) == ("websocket.close", NOT_ALLOWED)


async def test_signing_out_ends_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CHECK_SECONDS", 0.05)
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        await reported(socket)
        await Session.objects.all().adelete()
        closed = await socket.receive_output(timeout=SOON)
        assert (closed["type"], closed["code"]) == ("websocket.close", NOT_ALLOWED)


async def test_leaving_ends_the_thread(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        await reported(socket)
        assert running(f"brokers/{broker.slug}") == 1
    find = sync_to_async(eventually)
    assert await find(lambda: running(f"brokers/{broker.slug}") == 0, "the thread ends")
