"""Where the live pages connect to."""

from __future__ import annotations

from django.urls import path

from delayboard.live.consumers import LiveConsumer, NowhereConsumer

websocket_urlpatterns = [
    path("ws/<slug:kind>/<str:name>/", LiveConsumer.as_asgi()),
    path("<path:anything>", NowhereConsumer.as_asgi()),
]
