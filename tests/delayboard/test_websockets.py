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
from delayboard.live.consumers import NOT_SIGNED_IN
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


async def reported(socket: WebsocketCommunicator) -> Any:
    """The next message."""
    return await socket.receive_json_from(timeout=SOON)


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


async def test_a_viewer_is_sent_the_version_of_each_kind_of_page(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    publication = await sync_to_async(a_publication)(broker, after=timedelta(hours=1))
    batch = await sync_to_async(a_replay)(broker)
    for path in (
        f"brokers/{broker.slug}",
        f"publications/{publication.pk}",
        f"replays/{batch.pk}-running",
        f"now/{broker.pk}",
        f"system/{broker.pk}",
        "alerts/log",
    ):
        async with connected(f"/ws/{path}/", user) as socket:
            accepted, _ = await socket.connect(timeout=SOON)
            assert accepted
            news = await reported(socket)
            assert set(news) == {"version", "at", "rows", "within"}
            assert (bool(news["version"]), news["rows"]) == (True, {})


MANY = 10_000


class Numbers:
    """In place of `observe`: a vhost with so many queues, whose depths a test sets."""

    def __init__(self) -> None:
        self.changing: dict[str, int] = {}

    def __call__(self, management: Management) -> Snapshot:
        objects = Definitions(queues=frozenset(Queue(f"q{n}") for n in range(MANY)))
        depths = dict.fromkeys((f"q{n}" for n in range(MANY)), 1) | self.changing
        return a_snapshot(objects, {n: QueueNumbers(messages=d) for n, d in depths.items()})


async def test_the_page_of_ten_thousand_queues_is_sent_little_and_of_each_change(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    numbers = Numbers()
    monkeypatch.setattr(snapshots, "observe", numbers)
    settings.POLL_SECONDS = 0.05
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    async with connected(f"/ws/brokers/{broker.slug}/", user) as socket:
        await socket.connect(timeout=SOON)
        first = await reported(socket)
        while not first["at"]:
            first = await reported(socket)
        numbers.changing = {"q7": 2}
        while (news := await reported(socket))["version"] == first["version"]:
            pass
        assert len(json.dumps(news)) < 200


async def test_what_a_page_says_is_not_read(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    for sent in ({"text_data": "[" * 100_000}, {"bytes_data": b"{"}):
        async with connected(f"/ws/now/{broker.pk}/", user) as socket:
            await socket.connect(timeout=SOON)
            await socket.send_to(**sent)
            assert (await reported(socket))["version"]


async def test_pages_of_other_brokers_are_not_watched(broker: Broker) -> None:
    user = await sync_to_async(known_user("ann", Role.VIEWER, broker))()
    other = await sync_to_async(make_broker)(name="Other")
    for name in (f"{other.pk}", f"{broker.pk},{other.pk}", "0", "x", ",", f"{broker.pk},"):
        assert await closing_code(f"/ws/now/{name}/", user) == NOT_ALLOWED
        assert await closing_code(f"/ws/parked/{name};1;0/", user) == NOT_ALLOWED


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
