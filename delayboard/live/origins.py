"""Which origins a WebSocket may come from: the ones that a form may come from."""

from __future__ import annotations

from collections.abc import MutableMapping
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import OriginValidator, WebsocketDenier
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest

SCHEMES = {"ws": "http", "wss": "https"}


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
