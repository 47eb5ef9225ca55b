"""A live page's WebSocket: check the user, then send what the feed has of its subject."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from structlog.contextvars import bind_contextvars

from delayboard.live import subjects
from delayboard.live.feed import feed
from delayboard.live.guard import NOT_ALLOWED, OpenPage, guard
from delayboard.sign_in.second_factor import MISSING

NOT_SIGNED_IN = 4401


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
