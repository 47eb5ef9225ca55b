"""What truth_log holds, counted in plain Python: one day after the other, message by message."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from analytics.events import MessageEvent
from tests.analytics.truth_log import AHEAD, DAYS, NOW, PARKING, PLACES, Place

ONE_DAY, MILLISECOND = timedelta(days=1), timedelta(milliseconds=1)
OBSERVED = ("tap", "firehose")
BY_NAME = {place.topology: place for place in PLACES}


@dataclass
class Trip:
    """An entry: when it counts, how late it left (None: not measured), and its fate."""

    day: datetime
    place: Place
    destination: str
    entered_at: datetime
    delay_ms: int
    fate: str
    late_ms: float | None = None


@dataclass
class Retried:
    """A message's attempts that ended on a day; `cause` is empty without a failure on it."""

    day: datetime
    place: Place
    first: int
    last: int
    outcome: str
    took_ms: float
    cause: dict[str, str]


@dataclass
class Truth:
    trips: list[Trip] = field(default_factory=list)
    repeated: Counter[tuple[datetime, str, str]] = field(default_factory=Counter)
    """Of a day, topology and destination the entries that may be second copies."""
    messages: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    retried: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    attempts: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    """Messages retried in each attempt, added up."""
    releases: Counter[tuple[datetime, str, str, str, str]] = field(default_factory=Counter)
    """Of a day and topology, by "publisher" or "version" and its value: "messages", "retried"."""
    trails: list[Retried] = field(default_factory=list)
    failures: list[tuple[datetime, Place, MessageEvent]] = field(default_factory=list)
    letters: Counter[tuple[datetime, str, str, str, str, str, int]] = field(default_factory=Counter)
    """Of a day and broker, by kind, reason, origin, exception and hour."""
    probes: list[tuple[datetime, Place, int, str, float]] = field(default_factory=list)
    """The day, delay, "measured", "unmeasured" or "missing", and how late."""


def count(log: Iterable[MessageEvent]) -> Truth:
    found = Truth()
    events = list({event.event_id: event for event in log}.values())
    copies = [e for e in _without_repeats(events) if e.source in OBSERVED and e.topology]
    ends: defaultdict[tuple[str, str], list[MessageEvent]] = defaultdict(list)
    for event in events:
        is_given_up = event.kind == "published" and event.queue == PARKING
        if event.kind in ("died", "parked", "cancelled", "moved") or is_given_up:
            ends[event.broker, event.tracking_id].append(event)
    messages: defaultdict[tuple[str, str], list[MessageEvent]] = defaultdict(list)
    for event in copies:
        messages[event.topology, event.tracking_id].append(event)
    for (topology, name), own in messages.items():
        of_message = ends[BY_NAME[topology].broker, name]
        _add_trips(found, own, of_message)
    for day in DAYS:
        _add_day(found, day, copies, ends)
        _add_letters(found, day, [e for e in events if day <= e.recorded_at < day + ONE_DAY])
    _add_probes(found, [e for e in events if e.source == "probe"])
    return found


def _without_repeats(events: Iterable[MessageEvent]) -> Iterable[MessageEvent]:
    """Of messages with an id each copy once: of others nobody can tell."""
    seen = set()
    for event in sorted(events, key=lambda one: (one.redelivered, one.recorded_at)):
        step = (event.topology, event.kind, event.message_id, event.attempt)
        # A message that was rescheduled enters the same attempt twice, and no copy is marked.
        if not (event.message_id and event.redelivered and step in seen):
            yield event
        seen.add(step)


def _day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _delay(event: MessageEvent) -> timedelta:
    return event.requested_delay_ms * MILLISECOND


def _add_trips(found: Truth, own: list[MessageEvent], ends: list[MessageEvent]) -> None:
    """An exit belongs to the entry of its attempt and delay."""
    exits = {(e.attempt, e.requested_delay_ms): e for e in own if e.kind == "delivered"}
    for entry in (e for e in own if e.kind == "scheduled"):
        place, destination = BY_NAME[entry.topology], entry.destination
        day, due_at = _day(entry.recorded_at), entry.recorded_at + _delay(entry)
        exit_ = exits.get((entry.attempt, entry.requested_delay_ms))
        trip = Trip(day, place, destination, entry.recorded_at, entry.requested_delay_ms, "")
        if exit_:
            trip.fate = "delivered"
            if entry.caught_up and exit_.caught_up:
                trip.late_ms = (exit_.recorded_at - due_at) / MILLISECOND
        else:
            kinds = {e.kind for e in ends if e.recorded_at > entry.recorded_at - AHEAD}
            known = [kind for kind in ("cancelled", "moved") if kind in kinds]
            fates = [*known, *(["died"] if kinds - set(known) else []), "unexplained"]
            trip.fate = "waiting" if due_at > NOW else fates[0]
        found.trips.append(trip)
        if not entry.message_id and entry.redelivered:
            found.repeated[day, entry.topology, destination] += 1


def _add_day(
    found: Truth,
    day: datetime,
    copies: list[MessageEvent],
    ends: dict[tuple[str, str], list[MessageEvent]],
) -> None:
    """Messages, retries and failures: a delivery counts when its trip began."""
    counted: defaultdict[tuple[str, str], list[MessageEvent]] = defaultdict(list)
    named: defaultdict[tuple[str, str], list[MessageEvent]] = defaultdict(list)
    for event in copies:
        waited = _delay(event) if event.kind == "delivered" else timedelta(0)
        if day <= event.recorded_at - waited < day + ONE_DAY:
            counted[event.topology, event.key].append(event)
        if event.message_id and event.recorded_at >= day:
            named[event.topology, event.message_id].append(event)
        is_failure = event.kind in ("scheduled", "died") and event.death_reason
        if is_failure and day <= event.recorded_at < day + ONE_DAY:
            found.failures.append((day, BY_NAME[event.topology], event))
    for (topology, _), own in counted.items():
        retries = [event for event in own if _is_retry(event)]
        messages = _most(own, lambda e: (e.kind, e.attempt))
        retried = _most(retries, lambda e: (e.kind, e.attempt))
        found.messages[day, topology] += messages
        found.retried[day, topology] += retried
        for attempt in {event.attempt for event in retries}:
            of_attempt = [e for e in retries if e.attempt == attempt]
            found.attempts[day, topology] += _most(of_attempt, lambda e: e.kind)
        release = (("publisher", own[0].published_by), ("version", own[0].publisher_version))
        for dimension, value in release:
            if value:
                found.releases[day, topology, dimension, value, "messages"] += messages
                found.releases[day, topology, dimension, value, "retried"] += retried
    for (topology, name), own in named.items():
        _add_trail(found, day, own, ends.get((BY_NAME[topology].broker, name), []))


def _is_retry(event: MessageEvent) -> bool:
    if event.kind == "scheduled":
        return bool(event.death_reason) or event.attempt > 1
    failed_before = event.attempt > 1 or bool(event.failures)
    return event.kind == "delivered" and event.attempt > 0 and failed_before


def _most(copies: list[MessageEvent], step: Any) -> int:
    """How many messages these copies are: one with an id, else as many as the most of a step."""
    most = max(Counter(map(step, copies)).values(), default=0)
    return min(most, 1) if copies and copies[0].message_id else most


def _add_trail(
    found: Truth, day: datetime, own: list[MessageEvent], ends: list[MessageEvent]
) -> None:
    """The attempts of a message that ended or wait at the end of the day."""
    end = day + ONE_DAY
    attempts: defaultdict[int, dict[str, MessageEvent]] = defaultdict(dict)
    for event in own:
        if event.kind in ("scheduled", "delivered"):
            attempts[event.attempt][event.kind] = event
    retries = {n: sides for n, sides in attempts.items() if any(map(_is_retry, sides.values()))}
    begun = {
        number: sides
        for number, sides in retries.items()
        if any(side.recorded_at < end for side in sides.values())
    }
    if not begun:
        return
    left = {n: s["delivered"] for n, s in begun.items() if "delivered" in s}
    left = {n: exit_ for n, exit_ in left.items() if exit_.recorded_at < end}
    first, last = min(begun), max(begun)
    is_out = last in left
    is_continued = any(e.recorded_at >= end for sides in retries.values() for e in sides.values())
    ended_at = [e.recorded_at for e in ends if e.kind not in ("cancelled", "moved")]
    ended_at = [at for at in ended_at if at >= day]
    is_ended, is_ended_today = bool(ended_at), any(at < end for at in ended_at)
    outcome = "open"
    if is_ended_today or (is_ended and not is_continued):
        outcome = "given up"
    elif is_out and not is_continued:
        outcome = "left"
    began = [
        sides["scheduled"].recorded_at
        if "scheduled" in sides
        else sides["delivered"].recorded_at - _delay(sides["delivered"])
        for sides in begun.values()
    ]
    # What failed first on an earlier day, x-death has in whole seconds.
    for failure in (f for e in own for f in e.failures):
        at = datetime.fromtimestamp(failure["began_s"] or 0, day.tzinfo)
        began += [at] if at < day else []
    took_ms = 0.0
    if outcome == "left":
        took_ms = (max(e.recorded_at for e in left.values()) - min(began)) / MILLISECOND
    failed = sorted(
        (e for e in own if e.kind != "delivered" and e.death_reason and e.recorded_at < end),
        key=lambda one: one.recorded_at,
    )
    cause = cause_of(failed[0]) if failed else {}
    waits = outcome == "open" and not is_out
    place = BY_NAME[own[0].topology]
    if outcome == "left" and place.parking:
        outcome = "recovered"
    found.trails.append(Retried(day, place, first, last - waits, outcome, took_ms, cause))


def cause_of(failure: MessageEvent) -> dict[str, str]:
    return {
        **{"queue": failure.death_queue, "reason": failure.death_reason},
        **{"exception": failure.exception_type},
        "routing key": re.sub(r"\d+", "{n}", failure.routing_key),
        **{"publisher": failure.published_by, "version": failure.publisher_version},
    }


def _add_letters(found: Truth, day: datetime, events: list[MessageEvent]) -> None:
    arrived: defaultdict[tuple[str, str, str, str], list[MessageEvent]] = defaultdict(list)
    for event in events:
        place = (event.death_reason, event.death_queue)
        exception = event.exception_type if event.death_reason else ""
        is_death = event.kind == "died" and event.source in OBSERVED
        is_handled = event.kind in ("parked", "replayed", "discarded")
        if is_handled:
            key = (day, event.broker, event.kind, *place, exception, event.recorded_at.hour)
            found.letters[key] += 1
        if is_death or event.kind == "parked":
            arrived[event.broker, event.tracking_id, *place].append(event)
    for (broker, _, reason, origin), own in arrived.items():
        deaths = {event.attempt for event in own if event.kind == "died"}
        number = max(len(deaths), sum(event.kind == "parked" for event in own))
        exception = max(e.exception_type for e in own) if reason else ""
        hour = min(e.recorded_at for e in own).hour
        found.letters[day, broker, "arrived", reason, origin, exception, hour] += number


def _add_probes(found: Truth, events: list[MessageEvent]) -> None:
    by_name: defaultdict[str, dict[str, MessageEvent]] = defaultdict(dict)
    for event in events:
        by_name[event.tracking_id][event.kind] = event
    for sides in by_name.values():
        entry, exit_ = sides["scheduled"], sides.get("delivered")
        fate, late_ms = "missing", 0.0
        if exit_:
            fate = "measured" if entry.caught_up and exit_.caught_up else "unmeasured"
            late_ms = (exit_.recorded_at - entry.recorded_at - _delay(entry)) / MILLISECOND
        place = BY_NAME[entry.topology]
        found.probes.append(
            (_day(entry.recorded_at), place, entry.requested_delay_ms, fate, late_ms)
        )
