"""The figures of reports counted in plain Python, and a log whose truth is known.

The log has delays of every length, lateness with a heavy tail, retries, losses, messages that died
or were cancelled, copies that the recorder read twice, and messages that are not due at its end.
Twice the recorder's clock is set while messages wait.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.buckets import DELAY_EDGES_MS, EDGES_MS
from analytics.events import MessageEvent
from tests.analytics.builders import NOON, a_trip, an_entry, an_event, an_exit, ms

TOPOLOGY = "truth"
DELAYS_MS = (400, 2_000, 20_000, 120_000, 1_800_000, 7_200_000)
BEGIN = NOON - timedelta(hours=12)
END = NOON + timedelta(hours=12)
# In between the recorder's clock is behind, by less than the shortest delay.
SET_BACK, SET_FORWARD, STEP = NOON - timedelta(hours=2), NOON + timedelta(hours=2), ms(300)
# Where consumers publish what they give up, as structure shows it.
PARKING = "work.dlq"
CAUSES = (("TimeoutError", "order.7"), ("TimeoutError", "order.8"), ("ValueError", "mail"))

RELEASES: tuple[dict[str, str], ...] = (
    {"published_by": "shop", "headers_json": '{"x-version": "2.0", "note": "version"}'},
    {"published_by": "shop", "headers_json": '{"app-version": "1.9"}'},
    {"published_by": "billing"},
    # Alike but for the place of what is missing.
    {"published_by": "1.9"},
    {"headers_json": '{"app-version": "1.9"}'},
    {},
)


@dataclass
class Counted:
    histogram: Counter[tuple[str, int, str, int]] = field(default_factory=Counter)
    early: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    hours: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    outcomes: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    recoveries: Counter[int] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """By the hour in which they were recorded."""
    fates: Counter[str] = field(default_factory=Counter)
    unexplained: set[str] = field(default_factory=set)
    retried: tuple[int, int] = (0, 0)
    """All messages, and those that were retried."""
    groups: Counter[tuple[str, str, int, int, str]] = field(default_factory=Counter)
    releases: dict[tuple[str | None, str | None], tuple[int, int]] = field(default_factory=dict)


def a_log() -> list[MessageEvent]:
    chance = random.Random(11)
    events: list[MessageEvent] = []
    for number in range(400):
        name, delay_ms = f"d{number}", chance.choice(DELAYS_MS)
        at = BEGIN + ms(chance.uniform(0, 20 * 3_600_000))
        late = ms(round(chance.lognormvariate(3, 2), 3) - 2)
        of = {
            "topology": TOPOLOGY,
            "destination": chance.choice(["mail", "bill"]),
            "requested_delay_ms": delay_ms,
        }
        trip = a_trip(name, at, late, **of)
        fate = chance.choice(["out"] * 20 + ["lost", "died", "cancelled", "parked", "moved"])
        if fate == "out":
            events += trip
        elif fate == "lost":
            events.append(trip[0])
        else:
            source = "tap" if fate == "died" else "delayboard"
            topology = "" if fate == "parked" else TOPOLOGY
            end = {"kind": fate, "source": source, "topology": topology, "queue": "mail-dlq"}
            reason = {"death_reason": "rejected"} if fate == "parked" else {}
            events += [trip[0], an_event(message_id=name, recorded_at=at + ms(5), **end, **reason)]
    events += _retried(chance)
    events += _long(chance)
    # The recorder crashed and read these copies once more.
    for number in range(0, 40, 8):
        first = next(e for e in events if e.message_id == f"d{number}" and e.kind == "scheduled")
        again = {name: getattr(first, name) for name in ("requested_delay_ms", "destination")}
        events.append(
            an_entry(
                first.message_id,
                first.recorded_at,
                topology=TOPOLOGY,
                redelivered=True,
                **again,
            )
        )
    for number, at in enumerate((SET_BACK, SET_FORWARD)):
        for delay_ms in DELAYS_MS:
            of = {"topology": TOPOLOGY, "destination": "mail", "requested_delay_ms": delay_ms}
            events += a_trip(f"s{number}-{delay_ms}", at - ms(delay_ms / 2), ms(1), **of)
    return [_timed(event) for event in events]


def _timed(event: MessageEvent) -> MessageEvent:
    """As the recorder's clock showed it."""
    is_behind = SET_BACK <= event.recorded_at < SET_FORWARD
    return replace(event, recorded_at=event.recorded_at - STEP) if is_behind else event


def _retried(chance: random.Random) -> Iterable[MessageEvent]:
    for number in range(300):
        name, at = f"r{number}", BEGIN + ms(chance.uniform(0, 20 * 3_600_000))
        of: dict[str, Any] = {"topology": TOPOLOGY, "destination": "work"}
        of |= {"requested_delay_ms": 5000, **chance.choice(RELEASES)}
        none = of | {"attempt": 0, "requested_delay_ms": 0}
        yield an_event(kind="published", message_id=name, recorded_at=at, **none)
        failures = chance.choice([0, 0, 0, 1, 1, 2, 3, 5])
        exception, key = chance.choice(CAUSES)
        for attempt in range(1, failures + 1):
            at += timedelta(seconds=1)
            death = {"death_reason": "rejected", "death_queue": "work"}
            cause = {"exception_type": exception, "routing_key": key}
            yield an_entry(name, at, attempt=attempt, **of, **death, **cause)
            at += timedelta(seconds=5, milliseconds=3)
            yield an_exit(name, at, attempt=attempt, **of)
        if failures == 5:
            end = {"kind": "parked", "source": "delayboard", "queue": "work-dlq"}
            reason = {"death_reason": "rejected"}
            yield an_event(message_id=name, recorded_at=at, topology="", **end, **reason)
        if failures == 3:
            # The consumer publishes the last failure elsewhere, and acknowledges it.
            given_up = {"kind": "published", "source": "firehose", "topology": "", "attempt": 0}
            queue, later = chance.choice([PARKING, "elsewhere"]), chance.choice([1, 100_000])
            moved_at = at + timedelta(seconds=later)
            yield an_event(message_id=name, recorded_at=moved_at, queue=queue, **given_up)


def _long(chance: random.Random) -> Iterable[MessageEvent]:
    """Delays of thirty days, most of which end on a later day; some were parked the day before."""
    for number in range(60):
        name, at = f"long{number}", BEGIN + ms(chance.uniform(0, 20 * 3_600_000))
        of: dict[str, Any] = {"topology": TOPOLOGY, "destination": "mail"}
        entry, exit_ = a_trip(name, at, ms(2), requested_delay_ms=30 * 86_400_000, **of)
        fact: dict[str, Any] = {"message_id": name, "source": "delayboard", "queue": "mail-dlq"}
        if number % 3 == 0:
            before = {"recorded_at": at - timedelta(days=1), "topology": "", **fact}
            yield an_event(kind="parked", death_reason="rejected", **before)
        yield entry
        fate = chance.choice(["out", "out", "lost", "died", "cancelled", "parked", "moved"])
        if fate == "out":
            yield exit_
        elif fate != "lost":
            topology = "" if fate == "parked" else TOPOLOGY
            end_at = at + timedelta(days=chance.uniform(0, 29))
            reason = {"death_reason": "rejected"} if fate == "parked" else {}
            more = {"kind": fate, "topology": topology, "recorded_at": end_at, **reason}
            yield an_event(**fact | more | ({"source": "tap"} if fate == "died" else {}))


def count(events: Iterable[MessageEvent]) -> Counted:
    """The figures of the one topology on the day."""
    found = Counted()
    by_message: dict[str, list[MessageEvent]] = defaultdict(list)
    for event in events:
        if event.message_id and event.recorded_at >= BEGIN:
            by_message[event.message_id].append(event)
    for name, copies in by_message.items():
        own = [e for e in copies if e.topology == TOPOLOGY and not e.redelivered]
        if own:
            given_up = {"parked" for e in copies if e.queue == PARKING and e.kind == "published"}
            _add(found, name, own, {e.kind for e in copies} | given_up)
    return found


def _add(found: Counted, name: str, copies: list[MessageEvent], kinds: set[str]) -> None:
    trips: dict[int, dict[str, MessageEvent]] = defaultdict(dict)
    for event in copies:
        if event.kind in ("scheduled", "delivered"):
            trips[event.attempt][event.kind] = event
    seen = [e for e in copies if e.kind in ("published", "scheduled", "delivered", "died")]
    retries = sorted(n for n, trip in trips.items() if trip["scheduled"].death_reason)
    found.retried = found.retried[0] + 1, found.retried[1] + (len(retries) > 0)
    if (release := _release(seen[0])) != (None, None):
        messages, retried = found.releases.get(release, (0, 0))
        found.releases[release] = (messages + 1, retried + (len(retries) > 0))
    for trip in trips.values():
        _add_trip(found, name, trip, kinds)
    for attempt in retries:
        entry = trips[attempt]["scheduled"]
        key = "".join("{n}" if c.isdigit() else c for c in entry.routing_key)
        found.causes[entry.exception_type, key] += 1
        found.failures[_hour(entry.recorded_at)] += 1
    if retries:
        left = trips[retries[-1]].get("delivered")
        has_ended = kinds & {"parked", "died"}
        outcome = "exhausted" if has_ended else "left" if left else "open"
        triple = (retries[0], retries[-1], outcome)
        found.outcomes[triple] += 1
        for dimension, value in _groups(trips[retries[0]]["scheduled"]):
            found.groups[dimension, value, *triple] += 1
        if left and outcome == "left":
            took = left.recorded_at - trips[retries[0]]["scheduled"].recorded_at
            found.recoveries[_bucket(took)] += 1


def _add_trip(found: Counted, name: str, trip: dict[str, MessageEvent], kinds: set[str]) -> None:
    entry, exit_ = trip["scheduled"], trip.get("delivered")
    delay = ms(entry.requested_delay_ms)
    place = (entry.destination, _hour(entry.recorded_at))
    found.hours[place]["entered"] += 1
    if exit_:
        found.hours[place]["delivered"] += 1
        late = exit_.recorded_at - entry.recorded_at - delay
        group = sum(entry.requested_delay_ms >= edge for edge in DELAY_EDGES_MS)
        found.histogram[entry.destination, group, place[1], _bucket(late)] += 1
        if late <= -ms(1):
            found.early[entry.destination, place[1], _bucket(-late)] += 1
        return
    found.hours[place]["missing"] += 1
    is_dead = kinds & {"died", "parked"}
    own = next(iter(kinds & {"moved", "cancelled"}), "")
    fate = own or ("died" if is_dead else "unexplained")
    found.fates[fate] += 1
    if fate == "unexplained":
        found.unexplained.add(name)


def _groups(failure: MessageEvent) -> Iterable[tuple[str, str]]:
    publisher, version = _release(failure)
    yield from (("queue", failure.death_queue), ("reason", failure.death_reason))
    yield "exception", failure.exception_type
    yield "routing key", "".join("{n}" if c.isdigit() else c for c in failure.routing_key)
    yield from ((name, v) for name, v in (("publisher", publisher), ("version", version)) if v)


def _release(event: MessageEvent) -> tuple[str | None, str | None]:
    headers = json.loads(event.headers_json)
    return event.published_by or None, headers.get("x-version") or headers.get("app-version")


def _hour(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H}"


def _bucket(late: timedelta) -> int:
    return sum(late / ms(1) >= edge for edge in EDGES_MS)
