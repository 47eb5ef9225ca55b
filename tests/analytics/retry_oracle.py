"""Retries counted in plain Python, as docs/event-log.md defines them, and logs."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from analytics.events import MessageEvent
from tests.analytics.builders import NOON, an_event, ms

SECOND = timedelta(seconds=1)
WORK, RETRY = "work", "work-retry"


@dataclass
class Counted:
    """What a report says of one topology."""

    messages: int = 0
    retried: int = 0
    attempts: Counter[int] = field(default_factory=Counter)


def count(events: Iterable[MessageEvent], begin: datetime, end: datetime) -> Counted:
    """The figures of the day from `begin` to `end`."""
    by_key: dict[str, list[MessageEvent]] = defaultdict(list)
    for event in events:
        waited = ms(event.requested_delay_ms if event.kind == "delivered" else 0)
        if begin <= event.recorded_at - waited < end:
            by_key[event.key].append(event)
    reported = Counted()
    for copies in by_key.values():
        _add(reported, copies)
    return reported


def _add(reported: Counted, copies: list[MessageEvent]) -> None:
    has_id = bool(copies[0].message_id)
    retries = [event for event in copies if _is_retry(event)]
    reported.messages += _most(has_id, ((e.kind, e.attempt) for e in copies))
    reported.retried += _most(has_id, ((e.kind, e.attempt) for e in retries))
    for attempt in {event.attempt for event in retries}:
        kinds = (e.kind for e in retries if e.attempt == attempt)
        reported.attempts[attempt] += _most(has_id, kinds)


def _most(has_id: bool, steps: Iterable[object]) -> int:
    most = max(Counter(steps).values(), default=0)
    return min(most, 1) if has_id else most


def _is_retry(event: MessageEvent) -> bool:
    if event.kind == "scheduled":
        return event.death_reason != "" or event.attempt > 1
    is_exit = event.kind == "delivered" and event.attempt > 0
    return is_exit and (event.attempt > 1 or any(_failures(event)))


def _failures(event: MessageEvent) -> Iterator[tuple[str, str, int, int]]:
    if event.kind != "published":
        for death in json.loads(event.headers_json).get("x-death", ()):
            if death["reason"] != "expired":
                yield death["queue"], death["reason"], death["count"], death["time"]


def a_log(seed: int, topology: str, *, loss: float) -> list[MessageEvent]:
    """Messages with and without ids, around a midnight, some published anew, some copies lost."""
    chance = random.Random(seed)
    events: list[MessageEvent] = []
    for number in range(80):
        known = {"message_id": f"m{number}"} if number < 50 else {"message_id": ""}
        known |= {"content_id": f"c{number % 4}", "topology": topology}
        at = NOON + timedelta(
            hours=chance.choice([-12, 0, 3, 12]), seconds=chance.randrange(-3, 60)
        )
        for _ in range(chance.choice([1, 1, 1, 2])):
            events += _life(at, chance.choice([0, 0, 1, 1, 2, 4]), known)
            at += timedelta(minutes=2)
    return [event for event in events if chance.random() >= loss]


def _life(at: datetime, rejections: int, known: dict[str, Any]) -> Iterator[MessageEvent]:
    common: dict[str, Any] = known | {"source": "import", "caught_up": False}
    direct: dict[str, Any] = common | {"attempt": 0, "requested_delay_ms": 0}
    yield an_event(kind="published", recorded_at=at, **direct)
    yield an_event(kind="delivered", recorded_at=at + ms(2), **direct)
    died_at = int((at + SECOND).timestamp())
    for attempt in range(1, rejections + 1):
        at += SECOND
        rejected = {"queue": WORK, "reason": "rejected", "count": attempt, "time": died_at}
        expired = {"queue": RETRY, "reason": "expired", "count": attempt, "time": died_at}
        death = {"death_queue": WORK, "death_reason": "rejected"}
        own: dict[str, Any] = common | {"attempt": attempt}
        headers = json.dumps({"x-death": [rejected]}) if attempt % 2 else "{}"
        yield an_event(kind="scheduled", recorded_at=at, headers_json=headers, **own, **death)
        at += timedelta(seconds=5, milliseconds=3)
        headers = json.dumps({"x-death": [expired, rejected]})
        yield an_event(kind="delivered", recorded_at=at, headers_json=headers, **own)
