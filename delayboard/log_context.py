"""What every log line of a request, socket, command or task has in common: its ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import uuid4

from structlog.contextvars import bind_contextvars, clear_contextvars

HEADER = b"x-request-id"
# Request ids that are taken from a client: others would be a way to write into logs and headers.
REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def begin(request_id: str = "", **ids: object) -> str:
    """Bind the id, by default a new one, and nothing of what ran before here; returns it."""
    request_id = request_id or uuid4().hex
    clear_contextvars()
    bind_contextvars(request_id=request_id, **ids)
    return request_id


def read_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that a proxy gave the request; "" for none, and for one that is no plain id."""
    given = [value for name, value in headers if name == HEADER]
    return given[0].decode() if len(given) == 1 and REQUEST_ID.fullmatch(given[0]) else ""
