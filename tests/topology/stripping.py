"""The properties of a message that is published again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topology.message import Properties, Route
from topology.transfer.prepare import prepare


def stripped(properties: Properties, headers: Mapping[str, Any]) -> Properties:
    """Without what dying and routing added, and with these headers. Raises FieldError."""
    return prepare(Route("", ""), properties, b"", headers).properties
