"""Four weeks of history for a demo that has none: generated events, computed by the nightly job.

One job computes all days, for Spark's start costs more than they do: the events of each day have
the times of one day and a broker name of their own, `slug@day`, and no figure mixes brokers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count
from threading import Event
from typing import Any

from django.conf import settings
from django.db import connection

from analytics import nightly
from analytics.events import PROBE, MessageEvent
from analytics.launch import LaunchError, Result, Row, scratch
from analytics.log import EventLog, LogError
from analytics.models import DayFigures
from analytics.results.load import replace_day
from delayboard.demo.reminders import HOLD, LEVELS
from delayboard.demo.retries import DEAD, TRADES
from topology.database.slugs import new_slug
from topology.delays import milliseconds
from topology.models import Broker, Topology
from topology.patterns.table import PATTERNS

DAYS = 28
# Counted from the first day: the release after which orders fail more often, and the late night.
RELEASE, LATE_NIGHT = 19, 24
# The recorder read the events of this hour late.
BACKLOG_DAY, BACKLOG_HOUR = 22, 3
FAILED_BEFORE, FAILED_AFTER = 0.1, 0.3
# These never succeed.
HOPELESS, REPLAYS_THAT_DIE, CANCELLED = 0.03, 0.4, 0.03
ATTEMPTS = 3
NIGHT_HOURS = (2, 4)
USUAL_DELAYS_S, NIGHT_DELAYS_S, PROBE_DELAYS_S = (2, 10_000), (5, 60), (2, 1800)
HOURS_BETWEEN_PROBES = 2
VERSION_BEFORE, VERSION_AFTER = "2.3.1", "2.4.0"
HOUR_WEIGHTS = (1, 1, 1, 1, 1, 2, 3, 5, 8, 10, 10, 9, 8, 9, 10, 10, 9, 7, 5, 4, 3, 2, 2)
# Messages on a working day.
REMINDERS, HELD_REMINDERS, ORDERS, WEBHOOKS = 30, 20, 50, 20
# In each hour of the night, weekends too.
NIGHTLY_REMINDERS = 30
BUSY_SECONDS = 5.0
# The site and the demo's brokers go first.
NICENESS = 10
logger = logging.getLogger(__name__)


def show_history(broker: Broker, stop: Event) -> None:
    """Load four weeks of figures if there are none of this broker, then wait for `stop`."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

    def check_stop(done: int, total: int) -> None:
        if stop.is_set():
            raise nightly.Stopped("The demo stopped.")

    while not stop.is_set() and not DayFigures.objects.filter(broker=broker.slug).exists():
        try:
            load_history(broker, check_stop)
        except nightly.DayRefused:
            stop.wait(BUSY_SECONDS)
        except nightly.Stopped:
            return
        except (LaunchError, LogError) as error:
            logger.error("The demo has no history: %s", error)
            break
    connection.close()
    stop.wait()


def load_history(broker: Broker, progress: nightly.Progress) -> None:
    """Compute and load the days up to yesterday. Raises as `nightly.run_generated` does."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    days = [yesterday - timedelta(days=back) for back in reversed(range(DAYS))]

    def load(result: Result) -> None:
        # A day is replaced with all its brokers: one with figures of another broker keeps them.
        others = DayFigures.objects.filter(day__in=days).exclude(broker__in=("", broker.slug))
        kept = set(others.values_list("day", flat=True))
        for day, own in by_day(result, broker.slug, days).items():
            if day not in kept:
                replace_day(day, own, is_generated=True)

    with scratch(settings.VAR / "history") as folder:
        log = EventLog(folder, "tap.generated")
        log.append(sorted(generated(broker, days), key=lambda event: event.recorded_at))
        log.close()
        nightly.run_generated(folder, yesterday, days, load, progress=progress)


def label(slug: str, day: date) -> str:
    """The broker's name in the generated events of a day."""
    return f"{slug}@{day.isoformat()}"


def by_day(result: Result, slug: str, days: Sequence[date]) -> dict[date, Result]:
    """The job's result -> a result of each day, of the broker itself."""
    found = {day: Result(0, 0, {name: [] for name in result.tables}) for day in days}
    labels = {label(slug, day): day for day in days}
    for name, rows in result.tables.items():
        for row in rows:
            day = labels[row["broker"]]
            table: Any = found[day].tables[name]
            table.append(_events_of_day(row, slug, days[-1] - day))
    return found


def _events_of_day(row: Row, slug: str, earlier: timedelta) -> Row:
    changed = {**row, "broker": slug}
    if row.get("due_at"):
        changed["due_at"] = (datetime.fromisoformat(row["due_at"]) - earlier).isoformat()
    return changed


def generated(broker: Broker, days: Sequence[date]) -> Iterator[MessageEvent]:
    """The events of all days, with the times of the last one."""
    begin_at = datetime.combine(days[-1], time(), UTC)
    for number, day in enumerate(days):
        yield from _Day(broker, day, number, begin_at).events()


@dataclass(frozen=True)
class _Flow:
    """Where messages go: their topology, its queue and destination, and how many come a day."""

    topology: str
    pattern: str
    destination: str
    exception: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "pattern": self.pattern,
            "destination": self.destination,
            "routing_key": self.destination,
        }


def flow(kind: str, exception: str = "") -> _Flow:
    """The flow of the demo's topology of this kind."""
    flows = {flow.kind: (flow.params, flow.target) for flow in (LEVELS, HOLD)}
    trades = {trade.kind: (trade.params, trade.queue) for trade in TRADES}
    params, destination = (flows | trades)[kind]
    title = PATTERNS[kind].title(params)
    return _Flow(new_slug(title, lambda _: False, longest=80), kind, destination, exception)


class _Day:
    """The events of one day; the same day always has the same."""

    def __init__(self, broker: Broker, day: date, number: int, begin_at: datetime) -> None:
        self._chance, self._replays = random.Random(number), random.Random(-1 - number)
        self._number = number
        self._begin_at = begin_at
        self._share = 0.4 if day.weekday() >= 5 else 1.0
        version = VERSION_AFTER if number >= RELEASE else VERSION_BEFORE
        self._common: dict[str, Any] = {
            "caught_up": True,
            "broker": label(broker.slug, day),
            "vhost": broker.vhost,
            "size_bytes": 120,
            "published_by": "demo-shop",
            "headers_json": json.dumps({"x-version": version}),
            "publisher_version": version,
            "content_type": "application/json",
        }
        self._ids = count(1)

    def events(self) -> Iterator[MessageEvent]:
        levels, hold = flow(LEVELS.kind), flow(HOLD.kind)
        for at in self._moments(REMINDERS):
            low, high = USUAL_DELAYS_S
            delay_s = low * (high / low) ** self._chance.random()
            # No trip ends on the next day.
            rest_s = (self._begin_at + timedelta(hours=23.9) - at).total_seconds()
            yield from self._delayed_events(levels, at, min(delay_s, rest_s))
        for hour in range(*NIGHT_HOURS):
            for _ in range(NIGHTLY_REMINDERS):
                at = self._begin_at + timedelta(hours=hour, seconds=self._chance.uniform(0, 3600))
                yield from self._delayed_events(levels, at, self._chance.uniform(*NIGHT_DELAYS_S))
        for at in self._moments(HELD_REMINDERS):
            delay_s = self._chance.choice((10, 30, 120))
            is_cancelled = self._replays.random() < CANCELLED
            yield from self._delayed_events(hold, at, delay_s, is_cancelled=is_cancelled)
        failing = FAILED_AFTER if self._number >= RELEASE else FAILED_BEFORE
        yield from self._retried_events(flow("retry_pair", "TimeoutError"), ORDERS, 15, failing)
        yield from self._retried_events(flow("delay_queues", "ConnectionError"), WEBHOOKS, 10, 0.15)
        for hour in range(0, 24, HOURS_BETWEEN_PROBES):
            at = self._begin_at + timedelta(hours=hour, minutes=5)
            yield from self._probe_events(levels, at, self._chance.uniform(*PROBE_DELAYS_S))

    def _moments(self, number: int) -> Iterator[datetime]:
        """Times of the day, more in busy hours; none so late that a trip ends on the next day."""
        hours = range(len(HOUR_WEIGHTS))
        for hour in self._chance.choices(hours, HOUR_WEIGHTS, k=round(number * self._share)):
            yield self._begin_at + timedelta(hours=hour, seconds=self._chance.uniform(0, 3600))

    def _delayed_events(
        self, flow: _Flow, at: datetime, delay_s: float, *, is_cancelled: bool = False
    ) -> Iterator[MessageEvent]:
        message = self._message()
        delay = timedelta(seconds=round(delay_s))
        yield self._event("scheduled", at, flow, message, 1, delay, due_at=at + delay)
        is_lost = self._number % 9 == 4 and self._chance.random() < 0.02
        if is_cancelled:
            yield self._event("cancelled", at + delay / 2, flow, message, 0, source="delayboard")
        elif not is_lost:
            late = (self._number, at.hour) == (BACKLOG_DAY, BACKLOG_HOUR)
            at += delay + self._lateness(at)
            yield self._event("delivered", at, flow, message, 1, delay, caught_up=not late)

    def _probe_events(self, flow: _Flow, at: datetime, delay_s: float) -> Iterator[MessageEvent]:
        message = self._message()
        delay = timedelta(seconds=round(delay_s))
        own: dict[str, Any] = {
            "source": PROBE,
            "destination": Topology(slug=flow.topology).probe_queue,
            "queue": "",
        }
        yield self._event("scheduled", at, flow, message, 1, delay, due_at=at + delay, **own)
        at += delay + self._lateness(at)
        yield self._event("delivered", at, flow, message, 1, delay, **own)

    def _retried_events(
        self, flow: _Flow, number: int, delay_s: int, failing: float
    ) -> Iterator[MessageEvent]:
        delay = timedelta(seconds=delay_s)
        for at in self._moments(number):
            message = self._message()
            yield self._event("published", at, flow, message, 0)
            is_hopeless = self._chance.random() < HOPELESS
            attempt = 0
            while is_hopeless or self._chance.random() < failing:
                attempt += 1
                if attempt > ATTEMPTS:
                    yield from self._parked_events(flow, at, message)
                    break
                death: dict[str, Any] = {
                    "death_reason": "rejected",
                    "death_queue": flow.destination,
                    "exception_type": flow.exception,
                }
                yield self._event(
                    "scheduled", at, flow, message, attempt, delay, due_at=at + delay, **death
                )
                at += delay + self._lateness(at)
                yield self._event("delivered", at, flow, message, attempt, delay)

    def _parked_events(self, flow: _Flow, at: datetime, message: str) -> Iterator[MessageEvent]:
        """Parked, and most of them replayed or discarded an hour later."""
        dead: dict[str, Any] = {
            "source": "delayboard",
            "topology": "",
            "queue": f"{flow.destination}{DEAD}",
            "death_reason": "rejected",
            "death_queue": flow.destination,
            "exception_type": flow.exception,
        }
        yield self._event("parked", at, flow, message, 0, **dead)
        what = self._chance.choice(("replayed", "replayed", "discarded", ""))
        at += timedelta(hours=0.5)
        if what:
            name = f"{message}:replay" if what == "replayed" else ""
            yield self._event(what, at, flow, message, 0, replay_id=name, **dead)
        if what == "replayed":
            at += timedelta(seconds=2)
            if self._replays.random() < REPLAYS_THAT_DIE:
                yield self._event("parked", at, flow, message, 0, **dead)
            else:
                yield self._event("delivered", at, flow, message, 0, replay_id=name)

    def _lateness(self, at: datetime) -> timedelta:
        late_ms = self._chance.lognormvariate(1.6, 0.9)
        first, before = NIGHT_HOURS
        if self._number == LATE_NIGHT and first <= at.hour < before:
            late_ms += self._chance.lognormvariate(7.6, 0.6)
        return timedelta(milliseconds=late_ms)

    def _message(self) -> str:
        return f"generated-{self._number}-{next(self._ids)}"

    def _event(
        self,
        kind: Any,
        at: datetime,
        flow: _Flow,
        message: str,
        attempt: int,
        delay: timedelta = timedelta(0),
        **own: Any,
    ) -> MessageEvent:
        fields: dict[str, Any] = {
            "event_id": f"{message}:{next(self._ids)}",
            "source": "tap",
            "queue": flow.destination,
            "message_id": message,
            "content_id": message,
            "requested_delay_ms": milliseconds(delay),
            "attempt": attempt,
        }
        return MessageEvent(kind=kind, recorded_at=at, **self._common | flow.fields | fields | own)
