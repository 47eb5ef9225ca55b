"""Counters per topology and minute: what entered its delays, left them, died, was late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Protocol

from django.db.models import F, QuerySet

from analytics.events import MessageEvent
from analytics.models import Minute
from topology.models import Topology

LATE = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# What the first page counts: the present minute and those before it.
RECENT, SHOWN = 5, 60


class Left(Protocol):
    """A trip that has come to an end."""

    left_at: datetime | None
    caught_up: bool

    @property
    def lateness(self) -> timedelta | None: ...


@dataclass(frozen=True)
class Counts:
    """How many entered the delays, left them, left them late, entered them by a failure."""

    entered: int = 0
    left: int = 0
    late: int = 0
    died: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.entered + other.entered,
            self.left + other.left,
            self.late + other.late,
            self.died + other.died,
        )


@dataclass(frozen=True)
class Flow:
    """The counts of the last hour, minute by minute; `last_at` is the present minute's begin."""

    last_at: datetime
    minutes: tuple[Counts, ...]

    @cached_property
    def recent(self) -> Counts:
        return sum(self.minutes[-RECENT:], Counts())

    @cached_property
    def hour(self) -> Counts:
        return sum(self.minutes, Counts())

    @cached_property
    def most(self) -> int:
        """The highest number that entered or left in one minute."""
        return max((max(one.entered, one.left) for one in self.minutes), default=0)

    def until(self, moment: datetime | None) -> Flow:
        """Without the minutes after this moment, of which nothing is known."""
        if moment is None:
            return Flow(self.last_at, ())
        unknown = int((self.last_at - _minute(moment)) / MINUTE)
        return Flow(self.last_at, self.minutes[: len(self.minutes) - max(unknown, 0)])


def flows(topologies: Collection[Topology], now: datetime) -> dict[int, Flow]:
    """The last hour of each of these topologies, by its primary key."""
    last_at = _minute(now)
    first_at = last_at - (SHOWN - 1) * MINUTE
    found: dict[int, dict[int, Counts]] = {topology.pk: {} for topology in topologies}
    rows = Minute.objects.filter(topology__in=found, minute_at__gte=first_at)
    for key, at, *numbers in rows.values_list(
        "topology_id", "minute_at", "entered", "left", "late", "died"
    ):
        found[key][int((at - first_at) / MINUTE)] = Counts(*numbers)
    return {
        key: Flow(last_at, tuple(known.get(place, Counts()) for place in range(SHOWN)))
        for key, known in found.items()
    }


def since(topology: Topology, moment: datetime) -> QuerySet[Minute]:
    """The minutes from this one on, oldest first; a minute without a row had nothing."""
    start = _minute(moment)
    return Minute.objects.filter(topology=topology, minute_at__gte=start).order_by("minute_at")


def count(topology: Topology, events: Iterable[MessageEvent], closed: Iterable[Left]) -> None:
    """Add these events, and of the rows that they closed the late ones, to their minutes.

    Within the caller's transaction.
    """
    for minute_at, counts in tally(events, closed).items():
        Minute.objects.get_or_create(topology=topology, minute_at=minute_at)
        Minute.objects.filter(topology=topology, minute_at=minute_at).update(
            **{name: F(name) + number for name, number in counts.items()}
        )


def tally(events: Iterable[MessageEvent], closed: Iterable[Left]) -> dict[datetime, Counter[str]]:
    """Minute -> how many entered, left, died, late in it."""
    minutes: dict[datetime, Counter[str]] = defaultdict(Counter)
    for event in events:
        counts = minutes[_minute(event.recorded_at)]
        if event.kind == "scheduled":
            counts["entered"] += 1
            counts["died"] += bool(event.death_reason)
        elif event.kind == "delivered":
            counts["left"] += 1
    for row in closed:
        if row.left_at is not None and row.caught_up and (row.lateness or timedelta(0)) > LATE:
            minutes[_minute(row.left_at)]["late"] += 1
    return {minute_at: counts for minute_at, counts in minutes.items() if counts}


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
