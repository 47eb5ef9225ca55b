"""A log of two days and two brokers whose truth is known.

Nothing here is the product's: what belongs together is in `tracking_id`, which no job reads. The
log has everything that happens to a log: equal messages without an id, copies that a recorder reads
again after a crash, two recorders whose clocks differ, steps of a clock, delays of thirty days,
messages that were rescheduled, cancelled, moved, parked or given up on this day or a later one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from analytics.events import MessageEvent
from tests.analytics.builders import a_trip, an_entry, an_event, an_exit, ms

FIRST = datetime(2026, 11, 20, tzinfo=UTC)
DAYS = (FIRST, FIRST + timedelta(days=1))
# By when all but the delays of sixty days have ended.
NOW = FIRST + timedelta(days=42)
DELAYS_MS = (
    *(400, 2_000, 20_000, 120_000, 1_800_000, 7_200_000, 30_000_000),
    *(172_800_000, 30 * 86_400_000, 60 * 86_400_000),
)
# The second recorder's clock is ahead. The first one's is behind for some hours of the first day.
# Both together are less than the shortest delay; those without an id allow for 250 ms.
AHEAD, STEP = ms(120), ms(200)
IS_BEHIND = (FIRST + timedelta(hours=9), FIRST + timedelta(hours=13))
PARKING = "bills.dlq"


@dataclass(frozen=True)
class Place:
    """A topology; `parking` is observed: what left its retries and is not there was processed."""

    broker: str
    topology: str
    pattern: str
    destinations: tuple[str, ...]
    parking: str = ""


PLACES = (
    Place("east", "bills", "retry_pair", ("bill", "refund"), PARKING),
    Place("east", "mails", "delay_levels", ("mail",)),
    Place("west", "trucks", "retry_pair", ("truck", "bill")),
)
RELEASES: tuple[dict[str, str], ...] = (
    {"published_by": "shop", "publisher_version": "2.0"},
    {"published_by": "shop", "publisher_version": "1.9"},
    {"published_by": "1.9"},
    {"publisher_version": "1.9"},
    {},
)
CAUSES = (("TimeoutError", "order.7"), ("TimeoutError", "order.8"), ("ValueError", "mail"))


def a_log() -> list[MessageEvent]:
    chance = random.Random(46)
    events: list[MessageEvent] = []
    for place in PLACES:
        for day in DAYS:
            of_day = f"{place.topology}-{day.day}"
            for number in range(120):
                events += _plain(chance, place, f"{of_day}-p{number}", _moment(chance, day))
            for number in range(90):
                events += _retried(chance, place, f"{of_day}-r{number}", _moment(chance, day))
            for number in range(12):
                name, at = f"{of_day}-s{number}", _moment(chance, day)
                events += _rescheduled(chance, place, name, at, number)
            events += _equal(chance, place, of_day, day)
            events += _probes(chance, place, of_day, day)
    recorded = (_clocked(chance, event) for event in _with_repeats(events))
    return [event for event in recorded if event.recorded_at < NOW]


def _moment(chance: random.Random, day: datetime) -> datetime:
    """Now and then right before midnight."""
    seconds = 86_390 if chance.random() < 0.1 else chance.uniform(0, 86_000)
    return day + timedelta(seconds=seconds) + ms(chance.randrange(9000))


def _late(chance: random.Random) -> timedelta:
    return ms(round(chance.lognormvariate(3, 2), 3))


def _of(chance: random.Random, place: Place, name: str) -> dict[str, Any]:
    return {
        **{"broker": place.broker, "topology": place.topology, "pattern": place.pattern},
        **{"destination": chance.choice(place.destinations), "tracking_id": name},
        **{"content_id": f"content of {name}"},
    }


def _fact(of: dict[str, Any], name: str, kind: str, at: datetime) -> MessageEvent:
    """What Delayboard did; of a parked message nobody knows the topology."""
    own = {"message_id": name, "recorded_at": at, "source": "delayboard", "broker": of["broker"]}
    own |= {"queue": "dead", "topology": "", "destination": "", "requested_delay_ms": 0}
    own |= {"attempt": 0, "tracking_id": name}
    if kind in ("cancelled", "moved"):
        own["topology"] = of["topology"]
    else:
        own |= {"death_reason": "rejected", "death_queue": "work", "exception_type": "TimeoutError"}
    return an_event(kind=kind, **own)


def _plain(chance: random.Random, place: Place, name: str, at: datetime) -> Iterator[MessageEvent]:
    """A delay that ends, or does not, on this day or on a later one."""
    delay_ms = chance.choice(DELAYS_MS)
    of = _of(chance, place, name) | {"requested_delay_ms": delay_ms} | chance.choice(RELEASES)
    entry, exit_ = a_trip(name, at, _late(chance), **of)
    fate = chance.choice(["out"] * 14 + ["lost", "died", "cancelled", "parked", "moved", "behind"])
    if chance.random() < 0.1:
        # It was a dead letter before, which explains nothing of its delay.
        yield _fact(of, name, "parked", at - timedelta(hours=chance.choice([2, 26])))
    yield replace(entry, caught_up=fate != "behind")
    if fate in ("out", "behind"):
        yield exit_
    elif fate != "lost":
        end_at = at + ms(chance.uniform(5, delay_ms))
        if fate == "died":
            reason = {"death_reason": "maxlen", "death_queue": "wait", "queue": "dead"}
            yield an_event(kind="died", message_id=name, recorded_at=end_at, **of | reason)
        else:
            yield _fact(of, name, fate, end_at)
            if chance.random() < 0.3 and fate == "parked":
                yield _fact(of, name, "discarded", end_at + timedelta(minutes=5))


def _retried(
    chance: random.Random, place: Place, name: str, at: datetime
) -> Iterator[MessageEvent]:
    """A message of a retry pair with no, some or too many failures."""
    of = _of(chance, place, name) | {"requested_delay_ms": 5000} | chance.choice(RELEASES)
    yield an_event(
        kind="published",
        message_id=name,
        recorded_at=at,
        **of | {"attempt": 0, "requested_delay_ms": 0},
    )
    failures = chance.choice([0, 0, 0, 1, 1, 2, 3, 5])
    exception, key = chance.choice(CAUSES)
    first = at + timedelta(seconds=1)
    for attempt in range(1, failures + 1):
        at += timedelta(seconds=1)
        deaths = {"queue": "work", "reason": "rejected", "count": attempt}
        deaths["time"] = int(first.timestamp())
        more = of | {"headers_json": json.dumps({"x-death": [deaths]}), "attempt": attempt}
        more |= {"publisher_version": of.get("publisher_version", "")}
        death = {"death_reason": "rejected", "death_queue": "work"}
        death |= {"exception_type": exception, "routing_key": key}
        yield an_entry(name, at, **more | death)
        at += timedelta(seconds=5, milliseconds=3)
        yield an_exit(name, at, **more)
    later = at + timedelta(seconds=chance.choice([1, 100_000]))
    if failures == 5:
        yield _fact(of, name, "parked", later)
    if failures == 3:
        # The consumer publishes its last failure elsewhere, and acknowledges it.
        queue = chance.choice([place.parking or "elsewhere", "elsewhere"])
        given_up = {"source": "firehose", "topology": "", "attempt": 0, "queue": queue}
        given_up |= {"requested_delay_ms": 0, "destination": ""}
        yield an_event(kind="published", message_id=name, recorded_at=later, **of | given_up)


def _rescheduled(
    chance: random.Random, place: Place, name: str, at: datetime, number: int
) -> Iterator[MessageEvent]:
    """It waits for two days and gets two minutes, or is delivered now; on its day or the next."""
    of = _of(chance, place, name)
    moved_at = at + timedelta(hours=chance.choice([0.1, 25]))
    yield an_entry(name, at, **of | {"requested_delay_ms": 172_800_000})
    # Its fact is recorded after what it caused, and again after a kill.
    fact = _fact(of, name, "moved", moved_at + ms(20))
    yield from (fact, fact)
    if number % 3:
        yield from a_trip(name, moved_at, _late(chance), **of | {"requested_delay_ms": 120_000})


def _equal(
    chance: random.Random, place: Place, of_day: str, day: datetime
) -> Iterator[MessageEvent]:
    """Equal messages without an id: now and then one, of which some are lost, and in bursts."""
    of = {"broker": place.broker, "topology": place.topology, "pattern": place.pattern}
    of |= {"destination": place.destinations[0]}
    same: dict[str, Any] = of | {"requested_delay_ms": 300_000}
    for number in range(40):
        beat = {"content_id": "beat", "tracking_id": f"{of_day}-b{number}"}
        at = day + timedelta(hours=1, minutes=2 * number)
        entry, exit_ = a_trip("", at, ms(chance.uniform(0, 30_000)), **same | beat)
        yield from ([entry] if number % 9 == 4 else [entry, exit_])
    for burst in range(3):
        at = day + timedelta(hours=15 + burst)
        for number in range(30):
            one = {"content_id": "burst", "tracking_id": f"{of_day}-c{burst}-{number}"}
            yield from a_trip("", at + ms(20 * number), ms(3 + number % 4), **same | one)
    # The recorder crashed, and read the last entries once more: nothing tells them from others.
    for number in range(10, 30):
        again: dict[str, Any] = {"content_id": "burst", "tracking_id": f"{of_day}-again{number}"}
        again |= {"redelivered": True, "caught_up": False}
        yield an_entry("", at + ms(800 + number), **same | again)


def _probes(
    chance: random.Random, place: Place, of_day: str, day: datetime
) -> Iterator[MessageEvent]:
    of = {"broker": place.broker, "topology": place.topology, "source": "probe"}
    for number in range(12):
        name, at = f"{of_day}-probe{number}", day + timedelta(hours=number)
        delay = {"requested_delay_ms": chance.choice([2_000, 120_000]), "tracking_id": name}
        entry, exit_ = a_trip(name, at, _late(chance), **of | delay)
        yield entry
        if number != 3:
            yield replace(exit_, caught_up=number != 5)


def _with_repeats(events: list[MessageEvent]) -> Iterator[MessageEvent]:
    """A recorder crashed, and read a prefetch of copies of messages with an id again."""
    for place, event in enumerate(events):
        yield event
        is_copy = event.source == "tap" and event.message_id and event.kind != "published"
        if is_copy and place % 17 == 0:
            event_id = f"{event.event_id}-again"
            again: dict[str, Any] = {"redelivered": True, "event_id": event_id}
            again |= {"caught_up": False, "recorded_at": event.recorded_at + ms(700)}
            yield replace(event, **again)


def _clocked(chance: random.Random, event: MessageEvent) -> MessageEvent:
    """As the clock of one of the recorders showed it."""
    if event.source in ("delayboard", "probe"):
        return event
    if event.message_id and chance.random() < 0.3:
        return replace(event, recorded_at=event.recorded_at + AHEAD)
    is_behind = IS_BEHIND[0] <= event.recorded_at < IS_BEHIND[1]
    return replace(event, recorded_at=event.recorded_at - STEP) if is_behind else event
