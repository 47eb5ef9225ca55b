"""The AMQP properties of a typed message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

PLAIN = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")


def make_properties(data: Mapping[str, Any]) -> dict[str, Any]:
    """By their AMQP names, from the cleaned values of the form."""
    stated = {name: data[name] for name in (*PLAIN, "type", "app_id") if data.get(name)}
    stated["delivery_mode"] = 2 if data.get("persistent") else 1
    stated["timestamp"] = int(datetime.now(UTC).timestamp())
    if data.get("priority") is not None:
        stated["priority"] = data["priority"]
    if data.get("expiration") is not None:
        stated["expiration"] = str(data["expiration"] // timedelta(milliseconds=1))
    return stated
