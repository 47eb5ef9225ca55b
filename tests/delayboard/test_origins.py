"""A WebSocket is accepted from the site's own origin, port and scheme included."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from delayboard.asgi import application
from delayboard.live import guard
from delayboard.live.consumers import allowed_origins
from delayboard.live.guard import NOT_ALLOWED
from tests.builders import make_broker, make_user
from topology.models import Broker, Role

pytestmark = pytest.mark.both_databases


@pytest.fixture
def broker(transactional_db: None) -> Broker:
    return make_broker()


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port at which uvicorn serves the site."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application, log_level="warning", timeout_graceful_shutdown=2, ws="websockets-sansio"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


def cookie_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


async def status_of(port: int, origin: str, slug: str, cookie: str) -> int:
    """101 for an accepted socket."""
    address = f"ws://127.0.0.1:{port}/ws/brokers/{slug}/"
    headers = {"Cookie": cookie, "Origin": origin}
    try:
        async with connect(address, additional_headers=headers):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def test_another_port_or_scheme_of_this_host_is_another_origin(broker: Broker) -> None:
    cookie = await sync_to_async(lambda: cookie_of(make_user("ada", Role.ADMIN)))()
    async with served() as port:
        for origin, status in {
            f"http://127.0.0.1:{port}": 101,
            f"http://127.0.0.1:{port + 1}": 403,
            "http://127.0.0.1": 403,
            f"https://127.0.0.1:{port}": 403,
            f"http://localhost:{port}": 403,
            "http://127.0.0.1:99999": 403,
            "null": 403,
        }.items():
            assert (await status_of(port, origin, broker.slug, cookie)) == status, origin


async def test_an_open_socket_ends_with_its_session(
    broker: Broker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CHECK_SECONDS", 0.05)
    settings.SESSION_COOKIE_AGE = 2
    cookie = await sync_to_async(lambda: cookie_of(make_user("ada", Role.ADMIN)))()
    async with served() as port:
        address = f"ws://127.0.0.1:{port}/ws/brokers/{broker.slug}/"
        headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}"}
        async with connect(address, additional_headers=headers) as live:
            await live.send('{"type": "watch", "keys": []}')
            async with asyncio.timeout(20):
                await live.wait_closed()
            assert live.close_code == NOT_ALLOWED


@pytest.mark.parametrize(
    ("scheme", "headers", "own"),
    [
        ("ws", {}, ["http://delays.test:8000"]),
        ("wss", {}, ["https://delays.test:8000"]),
        ("ws", {"x-forwarded-proto": "https"}, ["https://delays.test:8000"]),
        ("ws", {"host": "evil.test"}, []),
    ],
)
def test_the_origins_of_a_site_behind_a_proxy(
    settings: Settings, scheme: str, headers: dict[str, str], own: list[str]
) -> None:
    settings.ALLOWED_HOSTS = ["delays.test"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://board.test", "https://*.board.test:8443"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    sent = {"host": "delays.test:8000", **headers}
    scope = {
        "type": "websocket",
        "path": "/ws/",
        "scheme": scheme,
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    trusted = ["https://board.test", "https://.board.test:8443"]
    assert allowed_origins(scope) == [*own, *trusted]
