"""The ASGI application: Django's pages, the live WebSockets, and the end of the feed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "delayboard.settings")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Scope]]
Send: TypeAlias = Callable[[Scope], Awaitable[None]]


def _pages_and_sockets() -> Any:
    pages = get_asgi_application()
    # These load models, so they come after Django is set up.
    from channels.auth import AuthMiddlewareStack
    from channels.routing import ProtocolTypeRouter, URLRouter
    from channels.security.websocket import AllowedHostsOriginValidator

    from delayboard.live.urls import websocket_urlpatterns

    sockets = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
    return ProtocolTypeRouter({"http": pages, "websocket": AllowedHostsOriginValidator(sockets)})


_router = _pages_and_sockets()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Channels' router knows no lifespan, so that part is answered here."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    else:
        await _router(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    from delayboard.live.feed import feed

    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            feed.end()
            await send({"type": "lifespan.shutdown.complete"})
            return
