"""Dead letters counted in plain Python, and a log in which each kind of them is."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from analytics.events import MessageEvent
from tests.analytics.builders import NOON, an_entry, an_event, an_exit, ms

TOPOLOGY = "letters"
HANDLED = ("parked", "replayed", "discarded")


@dataclass
class Counted:
    letters: Counter[tuple[str, ...]] = field(default_factory=Counter)


def a_log() -> list[MessageEvent]:
    """Deaths that a tap saw, that only parking shows, or both; replays with every outcome."""
    chance = random.Random(5)
    events: list[MessageEvent] = []
    for number in range(120):
        at = NOON + ms(chance.uniform(0, 11 * 3_600_000))
        reason = chance.choice(["rejected", "delivery_limit"])
        own: dict[str, Any] = {"message_id": f"l{number}", "death_reason": reason}
        own |= {"death_queue": chance.choice(["orders", "mail"]), "queue": "orders-dlq"}
        own["exception_type"] = chance.choice(["TimeoutError", "ValueError"])
        by_us: dict[str, Any] = own | {"source": "delayboard", "topology": ""}
        was_seen, was_parked = chance.choice([(True, True), (True, False), (False, True)])
        first = at - timedelta(hours=chance.choice([0, 2, 40]))
        history = {"count": 1, "reason": reason, "queue": "orders", "time": int(first.timestamp())}
        headers = json.dumps({"x-death": [history]}) if chance.random() < 0.5 else "{}"
        if was_seen:
            events.append(an_event(kind="died", recorded_at=at, topology=TOPOLOGY, **own))
        if was_parked:
            events.append(an_event(kind="parked", recorded_at=at + ms(900), **by_us))
        what = chance.choice(["replayed", "replayed", "discarded", ""]) if was_parked else ""
        later = at + timedelta(minutes=chance.choice([1, 20]))
        if what == "discarded":
            events.append(an_event(kind=what, recorded_at=later, **by_us))
        if what == "replayed":
            name = {"replay_id": f"batch:{number}"}
            sent = {"headers_json": headers} | name
            events.append(an_event(kind=what, recorded_at=later, **by_us | sent))
            events += _after(chance.choice("adpn"), f"l{number}", later, name, own, by_us)
    return events


def _after(
    outcome: str,
    message: str,
    at: datetime,
    name: dict[str, Any],
    own: dict[str, Any],
    by_us: dict[str, Any],
) -> Iterable[MessageEvent]:
    """What follows a replay: it arrives, dies, is parked again, or nothing.

    Where nothing follows, another message with the same key is parked.
    """
    at += timedelta(seconds=1)
    if outcome == "a":
        yield an_entry(message, at, topology=TOPOLOGY, **name)
        yield an_exit(message, at + timedelta(seconds=5), topology=TOPOLOGY, **name)
    if outcome == "d":
        yield an_event(kind="died", recorded_at=at, topology=TOPOLOGY, **own | name)
    if outcome == "p":
        yield an_event(kind="parked", recorded_at=at, **by_us | name)
    if outcome == "n":
        yield an_event(kind="parked", recorded_at=at, **by_us)


def count(events: Iterable[MessageEvent], end: datetime) -> Counted:
    found = Counted()
    letters = [e for e in events if e.kind in (*HANDLED, "died")]
    letters = [e for e in letters if (e.source == "delayboard") == (e.kind != "died")]
    arrived: dict[tuple[str, str, str], list[MessageEvent]] = defaultdict(list)
    for event in letters:
        if event.recorded_at >= end:
            continue
        place = (event.queue, event.death_reason, event.death_queue, _exception(event))
        if event.kind != "died":
            found.letters[*place, event.kind, _hour(event)] += 1
        if event.kind in ("died", "parked"):
            arrived[event.key, event.death_reason, event.death_queue].append(event)
    for (_, reason, origin), own in arrived.items():
        died = {(e.attempt, e.replay_id) for e in own if e.kind == "died"}
        number = max(len(died), sum(e.kind == "parked" for e in own))
        queue, exception = max(e.queue for e in own), max(_exception(e) for e in own)
        hour = min(map(_hour, own))
        found.letters[queue, reason, origin, exception, "arrived", hour] += number
    return found


def _hour(event: MessageEvent) -> str:
    return event.recorded_at.strftime("%H")


def _exception(event: MessageEvent) -> str:
    return event.exception_type if event.death_reason else ""
