"""Django's ASGI handler with threads that outlive a request, and with them its connection.

Django makes a thread for each request, so CONN_MAX_AGE has no effect there, and changes threads
twice for each middleware. Here a request runs in one thread, through middleware that is not async.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponseBase

# More pages at once have threads too, which end with their page.
KEPT_THREADS = 8


class PageHandler(ASGIHandler):
    def __init__(self) -> None:
        self._idle: list[ThreadPoolExecutor] = []
        super().__init__()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        # The one that was used last: the others' connections get old, and are closed.
        thread = self._idle.pop() if self._idle else ThreadPoolExecutor(1, "page")
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.handle(scope, receive, send)
        finally:
            if len(self._idle) < KEPT_THREADS:
                self._idle.append(thread)
            else:
                _end(thread)

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response)(request)

    def end(self) -> None:
        """Close the connections of all threads that no page uses."""
        while self._idle:
            _end(self._idle.pop())


def _end(thread: ThreadPoolExecutor) -> None:
    thread.submit(connections.close_all)
    thread.shutdown(wait=False)
