"""The ASGI application: Django's pages, the live WebSockets, and the end of the feed."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import django
from django.conf import settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from delayboard import log_context
from delayboard.page_handler import PageHandler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "delayboard.settings")

logger = logging.getLogger(__name__)

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Scope]]
Send: TypeAlias = Callable[[Scope], Awaitable[None]]


def _sockets() -> Any:
    # These load models, so they come after Django is set up.
    from channels.auth import AuthMiddlewareStack
    from channels.routing import URLRouter

    from delayboard.live.consumers import SameOriginValidator, websocket_urlpatterns

    return SameOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))


django.setup(set_prefix=False)
_pages = PageHandler()
_socket_router = _sockets()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    request_id = log_context.begin(log_context.read_request_id(scope["headers"]))

    async def answer(message: Scope) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            header = (log_context.HEADER, request_id.encode())
            message = {**message, "headers": [*(message.get("headers") or ()), header]}
        await send(message)

    # Who is connected: a header of a trusted proxy counts by this address.
    scope["peer"] = scope.get("client")
    await _requests(scope, receive, answer)


async def _request(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await _socket(scope, receive, send)
    elif scope["path"].rstrip("/") == "/mcp":
        from delayboard.mcp_server import serve_http

        await serve_http(_pages, scope, receive, send)
    else:
        await _pages(scope, receive, send)


# As uvicorn itself does with proxy_headers, which would forget the address before.
_requests: Any = (
    ProxyHeadersMiddleware(_request, os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1"))  # type: ignore[arg-type]
    if settings.BEHIND_TLS
    else _request
)


async def _socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Close a socket that the database fails, with one line in the log; the page tries again."""
    from delayboard.live.guard import TRY_AGAIN_LATER
    from topology.database.errors import explain

    try:
        await _socket_router(scope, receive, send)
    except Exception as error:
        trouble = explain(error)
        if trouble is None:
            raise
        logger.warning("WebSocket %s failed: %s", scope["path"], trouble)
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})


async def _live(receive: Receive, send: Send) -> None:
    from delayboard.live.feed import feed
    from delayboard.live.hold_database import hold_database

    with hold_database():
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        feed.end()
        _pages.end()
    await send({"type": "lifespan.shutdown.complete"})
