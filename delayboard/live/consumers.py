"""A live page's WebSocket: check the user, then send what the feed has of its subject."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.security.websocket import OriginValidator, WebsocketDenier
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.urls import path
from structlog.contextvars import bind_contextvars

from delayboard.live import subjects
from delayboard.live.feed import feed
from delayboard.live.guard import NOT_ALLOWED, OpenPage, guard
from delayboard.sign_in.second_factor import MISSING

NOT_SIGNED_IN = 4401

SCHEMES = {"ws": "http", "wss": "https"}


class LiveConsumer(AsyncWebsocketConsumer):
    """Keeps only the newest: a slow page skips older ones. What a page sends is not read."""

    async def connect(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._subject: subjects.Subject | None = None
        user = self.scope["user"]
        await self.accept()
        if not user.is_authenticated:
            await self.close(NOT_SIGNED_IN)
            return
        bind_contextvars(actor_id=user.pk)
        self._subject = await self._allowed_subject(user)
        if self._subject is None:
            await self.close(NOT_ALLOWED)
            return
        self._loop = asyncio.get_running_loop()
        self._newest = ""
        self._news = asyncio.Event()
        self._tasks = [asyncio.create_task(self._hand_on()), asyncio.create_task(self._guard())]
        await sync_to_async(feed.watch)(self._subject, self._deliver)

    async def disconnect(self, code: int) -> None:
        if self._subject is not None and self._tasks:
            await sync_to_async(feed.leave)(self._subject, self._deliver)
        for task in self._tasks:
            task.cancel()

    def _deliver(self, text: str) -> None:
        """Called from the feed's thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, text)

    def _take(self, text: str) -> None:
        self._newest = text
        self._news.set()

    async def _hand_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self.send(self._newest)

    async def _guard(self) -> None:
        session, user = self.scope["session"], self.scope["user"]
        route = self.scope["url_route"]["kwargs"]
        page = OpenPage(session.session_key, user.pk, route["kind"], route["name"])
        await self.close(await guard.wait_for_end(page))

    async def _allowed_subject(self, user: Any) -> subjects.Subject | None:
        route = self.scope["url_route"]["kwargs"]

        def find() -> subjects.Subject | None:
            subject = subjects.find(route["kind"], route["name"], settings.POLL_SECONDS)
            if subject is None or self.scope["session"].get(MISSING):
                return None
            return subject if subjects.may_watch(user, subject) else None

        return await sync_to_async(find)()


class NowhereConsumer(AsyncWebsocketConsumer):
    """Any other address: closed, and no error of ours."""

    async def connect(self) -> None:
        await self.accept()
        await self.close(NOT_ALLOWED)


class SameOriginValidator:
    """Accepts a socket whose Origin has the scheme, host and port of the site itself.

    CSRF_TRUSTED_ORIGINS are accepted too, as Django does for forms.
    """

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Any:
        validator = OriginValidator(self.application, allowed_origins(scope))
        if not has_valid_port(scope):
            return await WebsocketDenier()(scope, receive, send)
        return await validator(scope, receive, send)


def allowed_origins(scope: MutableMapping[str, Any]) -> list[str]:
    """The site's own origin, by its Host header, and the trusted ones; "*." becomes "."."""
    trusted = [origin.replace("://*.", "://.") for origin in settings.CSRF_TRUSTED_ORIGINS]
    scheme = SCHEMES.get(scope.get("scheme", "ws"), "http")
    request = ASGIRequest({**scope, "type": "http", "scheme": scheme, "method": "GET"}, BytesIO())
    try:
        return [f"{request.scheme}://{request.get_host()}", *trusted]
    except DisallowedHost:
        return trusted


def has_valid_port(scope: MutableMapping[str, Any]) -> bool:
    """Whether the Origin header can be read: the validator raises ValueError otherwise."""
    for name, value in scope["headers"]:
        if name == b"origin":
            try:
                urlsplit(value.decode("latin1")).port  # noqa: B018
            except ValueError:
                return False
    return True


websocket_urlpatterns = [
    path("ws/<slug:kind>/<str:name>/", LiveConsumer.as_asgi()),
    path("<path:anything>", NowhereConsumer.as_asgi()),
]
