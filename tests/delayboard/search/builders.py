"""Messages to search for, and what a search finds."""

from __future__ import annotations

import time
from typing import Any

import orjson

from analytics.search.find import find
from delayboard.dead_letters.search import index as indexer
from delayboard.dead_letters.search import search_by
from delayboard.models import ParkedMessage
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from topology.models import Broker


def put(
    broker: Broker,
    body: Any = None,
    headers: dict[str, Any] | None = None,
    *,
    queue: str = "dead",
    reason: str = "rejected",
    **stated: Any,
) -> ParkedMessage:
    """One parked message; a body that is no bytes is written as JSON."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    reported = deaths_header(a_death(reason=reason)) | (headers or {})
    (parked_message,) = parked(broker, a_message(data, reported, **stated), queue=queue)
    return parked_message


def index() -> None:
    """Index everything that was parked."""
    progress = indexer.begin()
    while indexer.keep_up(progress):
        pass
    progress.to_sweep = progress.reached
    indexer.sweep(progress)


def found(broker: Broker, query: str, wanted: int = 7) -> list[int]:
    """The ids that page after page shows, to the end."""
    search = search_by(None, broker, query)
    ids: list[int] = []
    before: int | None = None
    until = time.monotonic() + 60
    while time.monotonic() < until:
        page = find(search, before, wanted)
        ids += page.ids
        if page.edge is None:
            return ids
        before = page.edge
    raise AssertionError(f"{query} never came to its end")
