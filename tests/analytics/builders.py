"""Events and logs for tests: a plain one, changed where a test says so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from analytics.events import MessageEvent, failures_of
from analytics.log import EventLog
from analytics.recorder.copies import version_of
from analytics.recorder.follow import Follower
from tests.analytics.day_lines import days, read_day
from topology.deaths import read_history

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DELAY = timedelta(seconds=5)
_numbers = count(1)


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


def an_event(**changes: Any) -> MessageEvent:
    """An entry of message "m1" into the five seconds of the topology "orders" at noon."""
    values: dict[str, Any] = {
        "event_id": f"test-{next(_numbers)}",
        "kind": "scheduled",
        "recorded_at": NOON,
        "caught_up": True,
        "source": "tap",
        "broker": "main",
        "vhost": "/",
        "topology": "orders",
        "pattern": "retry_pair",
        "destination": "orders",
        "queue": "orders-retry",
        "message_id": "m1",
        "content_id": "c1",
        "requested_delay_ms": 5000,
        "attempt": 1,
    }
    return MessageEvent(**(values | _read_of_headers(values | changes) | changes))


def _read_of_headers(values: dict[str, Any]) -> dict[str, Any]:
    """What a recorder reads of the headers."""
    try:
        headers = json.loads(values.get("headers_json", "{}"))
    except ValueError:
        return {}
    return {
        "failures": failures_of(read_history(headers)),
        "publisher_version": version_of(headers),
    }


def an_entry(message_id: str = "m1", at: datetime = NOON, **changes: Any) -> MessageEvent:
    delay = ms(changes.get("requested_delay_ms", 5000))
    changes = {"message_id": message_id, "recorded_at": at, "due_at": at + delay} | changes
    return an_event(**changes)


def an_exit(message_id: str = "m1", at: datetime = NOON + DELAY, **changes: Any) -> MessageEvent:
    changes = {"message_id": message_id, "recorded_at": at, "queue": "orders"} | changes
    return an_event(kind="delivered", **changes)


def a_trip(
    message_id: str = "m1", at: datetime = NOON, late: timedelta = timedelta(0), **changes: Any
) -> list[MessageEvent]:
    """An entry and its exit, so much later than asked for."""
    delay = ms(changes.get("requested_delay_ms", 5000))
    return [
        an_entry(message_id, at, **changes),
        an_exit(message_id, at + delay + late, **changes),
    ]


def write_log(folder: Path, events: Iterable[MessageEvent], recorder: str = "test") -> None:
    log = EventLog(folder, recorder)
    log.append(events)
    log.close()


def results_in(log: Path) -> str:
    """The URL of a folder for results, beside the log."""
    return f"file://{log.with_name(log.name + '-results')}"


def logged(folder: Path) -> list[MessageEvent]:
    """Every event of the log in `folder`, the oldest day first."""
    return [event for day in days(folder) for event in read_day(folder, day)]


def follow_log(folder: Path) -> dict[str, object]:
    """Bring the index up to the log in `folder`, as the worker does; its counters."""
    follower = Follower(folder)
    while follower.step():
        pass
    return follower.counters()
