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
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import count
from threading import Event
from typing import Any

from django.conf import settings
from django.db import connection

from analytics import nightly
from analytics.events import PROBE, MessageEvent
from analytics.launch import LaunchError, Result, scratch
from analytics.log import EventLog, LogError
from analytics.models import DayFigures
from analytics.results.load import replace_day
from delayboard.demo.script import (
    DAYS,
    LATE_NIGHT,
    LEVELS,
    NIGHT_HOURS,
    ORDERS,
    RELEASE,
    Flow,
)
from topology import work
from topology.database.slugs import new_slug
from topology.delays import milliseconds
from topology.models import Broker, Topology

ATTEMPTS = 3
# Orders of an hour, from midnight on working days; twice as many reminders.
HOURLY = (1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 4, 3, 4, 4, 4, 4, 3, 2, 2, 1, 1, 1)
FAILED_BEFORE, FAILED_AFTER, LOST = 0.1, 0.3, 0.002
BUSY_SECONDS = 5.0
# Niceness of the job: the site and the demo's brokers go first.
NICENESS = 10
logger = logging.getLogger(__name__)


def show_history(broker: Broker, stop: Event) -> None:
    """Load four weeks of figures if there are none of this broker, then wait for `stop`."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

    def check_stop(done: int, total: int) -> None:
        if stop.is_set():
            raise work.Stopped("The demo stopped.")

    while not stop.is_set() and not DayFigures.objects.filter(broker=broker.slug).exists():
        try:
            load_history(broker, check_stop)
        except nightly.DayRefused:
            stop.wait(BUSY_SECONDS)
        except work.Stopped:
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
        for day, own in split_days(result, broker.slug, days).items():
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


def split_days(result: Result, slug: str, days: Sequence[date]) -> dict[date, Result]:
    """The job's result -> a result of each day, of the broker itself."""
    found = {day: Result(0, 0, {name: [] for name in result.tables}) for day in days}
    labels = {label(slug, day): day for day in days}
    for name, rows in result.tables.items():
        for row in rows:
            day = labels[row["broker"]]
            changed = {**row, "broker": slug}
            if row.get("due_at"):
                due_at = datetime.fromisoformat(row["due_at"]) - (days[-1] - day)
                changed["due_at"] = due_at.isoformat()
            table: Any = found[day].tables[name]
            table.append(changed)
    return found


def generated(broker: Broker, days: Sequence[date]) -> Iterator[MessageEvent]:
    """The events of all days, with the times of the last one; a day always has the same."""
    begin_at = datetime.combine(days[-1], time(), UTC)
    for number, day in enumerate(days):
        yield from _Day(broker, day, number, begin_at).events()


@cache
def slug_of(flow: Flow) -> str:
    """The slug that the flow's topology has in the demo."""
    return new_slug(flow.pattern.title(flow.params), lambda _: False, longest=80)


class _Day:
    def __init__(self, broker: Broker, day: date, number: int, begin_at: datetime) -> None:
        self._chance = random.Random(number)
        self._number = number
        self._begin_at = begin_at
        self._is_weekend = day.weekday() >= 5
        version = "2.4.0" if number >= RELEASE else "2.3.1"
        self._common: dict[str, Any] = {
            "source": "tap",
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
        failing = FAILED_AFTER if self._number >= RELEASE else FAILED_BEFORE
        for hour, weekday in enumerate(HOURLY):
            number = 1 if self._is_weekend else weekday
            for _ in range(number):
                yield from self._work(self._moment(hour), failing)
            # No trip ends on the next day.
            longest_s = min(10_000, (23.9 - hour - 1) * 3600 + 300)
            for _ in range(30 if hour in range(*NIGHT_HOURS) else 2 * number):
                delay_s = 2 * (longest_s / 2) ** self._chance.random()
                yield from self._trip(self._moment(hour), delay_s)
            probe = {"source": PROBE, "destination": Topology(slug=slug_of(LEVELS)).probe_queue}
            yield from self._trip(self._moment(hour), min(60, longest_s), queue="", **probe)

    def _moment(self, hour: int) -> datetime:
        return self._begin_at + timedelta(hours=hour, seconds=self._chance.uniform(0, 3600))

    def _trip(self, at: datetime, delay_s: float, **own: Any) -> Iterator[MessageEvent]:
        """Into a delay and out of it; a few messages are lost."""
        message, delay = self._message(), timedelta(seconds=round(delay_s))
        yield self._event("scheduled", at, LEVELS, message, 1, delay, due_at=at + delay, **own)
        if own or self._chance.random() >= LOST:
            at += delay + self._lateness(at)
            yield self._event("delivered", at, LEVELS, message, 1, delay, **own)

    def _work(self, at: datetime, failing: float) -> Iterator[MessageEvent]:
        """Tried until it succeeds, or three times; then it is parked."""
        message, delay = self._message(), timedelta(seconds=15)
        death: dict[str, Any] = {
            "death_reason": "rejected",
            "death_queue": ORDERS.queue,
            "exception_type": "TimeoutError",
        }
        yield self._event("published", at, ORDERS, message, 0)
        for attempt in range(1, ATTEMPTS + 1):
            if self._chance.random() >= failing:
                return
            due_at = at + delay
            yield self._event(
                "scheduled", at, ORDERS, message, attempt, delay, due_at=due_at, **death
            )
            at = due_at + self._lateness(due_at)
            yield self._event("delivered", at, ORDERS, message, attempt, delay)
        dead = {**death, "source": "delayboard", "topology": "", "queue": ORDERS.dead}
        yield self._event("parked", at, ORDERS, message, 0, **dead)

    def _lateness(self, at: datetime) -> timedelta:
        late_ms = self._chance.lognormvariate(1.6, 0.9)
        if self._number == LATE_NIGHT and at.hour in range(*NIGHT_HOURS):
            late_ms += self._chance.lognormvariate(7.6, 0.6)
        return timedelta(milliseconds=late_ms)

    def _message(self) -> str:
        return f"generated-{self._number}-{next(self._ids)}"

    def _event(
        self,
        kind: Any,
        at: datetime,
        flow: Flow,
        message: str,
        attempt: int,
        delay: timedelta = timedelta(0),
        **own: Any,
    ) -> MessageEvent:
        fields: dict[str, Any] = {
            "event_id": f"{message}:{next(self._ids)}",
            "topology": slug_of(flow),
            "pattern": flow.kind,
            "destination": flow.target,
            "routing_key": flow.target,
            "queue": flow.queue,
            "message_id": message,
            "content_id": message,
            "requested_delay_ms": milliseconds(delay),
            "attempt": attempt,
        }
        return MessageEvent(kind=kind, recorded_at=at, **self._common | fields | own)
