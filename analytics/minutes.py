"""Counters per topology and minute: what entered its delays, left them, died, was late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple, Protocol

import orjson
from django.db.models import F, Sum, TextField
from django.db.models.functions import Cast, Substr

from analytics import buckets
from analytics.buckets import OVERDUE_AFTER
from analytics.events import MessageEvent
from analytics.models import Minute
from analytics.models.scheduled_message import Departure, measure_lateness
from topology.models import Topology

MINUTE = timedelta(minutes=1)
# Minutes that the first page counts: the present one and those before it.
RECENT, SHOWN = 5, 60
# Time of one place in the drawing of a day.
SPAN_DRAWN = timedelta(minutes=10)
# Value of a minute without measured lateness, as most minutes of most topologies.
NO_LATENESS = "{}"


class ClosedTrip(Departure, Protocol):
    """A trip that has come to an end."""

    @property
    def caught_up(self) -> bool: ...


class Counts(NamedTuple):
    """How many entered the delays, left them, left them late, entered them by a failure."""

    entered: int = 0
    left: int = 0
    late: int = 0
    died: int = 0


@dataclass(frozen=True)
class Flow:
    """The counts of the last hour, minute by minute; `last_at` is the present minute's begin.

    `lateness` has the measured messages that left in the hour, by bucket.
    """

    last_at: datetime
    minutes: tuple[Counts, ...]
    lateness: buckets.Counts = field(default_factory=dict)

    @cached_property
    def recent(self) -> Counts:
        return _add_up(self.minutes[-RECENT:])

    @cached_property
    def hour(self) -> Counts:
        return _add_up(self.minutes)

    @cached_property
    def most(self) -> int:
        """The highest number that entered or left in one minute."""
        return max((max(one.entered, one.left) for one in self.minutes), default=0)

    def until(self, moment: datetime | None) -> Flow:
        """The flow without the minutes after this time, of which nothing is known."""
        if moment is None:
            return Flow(self.last_at, (), self.lateness)
        unknown = int((self.last_at - _minute(moment)) / MINUTE)
        known = self.minutes[: len(self.minutes) - max(unknown, 0)]
        return Flow(self.last_at, known, self.lateness)


def flows(topologies: Collection[Topology], now: datetime) -> dict[int, Flow]:
    """The last hour of each of these topologies, by its primary key."""
    last_at = _minute(now.astimezone(UTC))
    first_at = last_at - (SHOWN - 1) * MINUTE
    found: dict[int, dict[int, Counts]] = {topology.pk: {} for topology in topologies}
    late: dict[int, Counter[int]] = {key: Counter() for key in found}
    none = Counts()
    # The minutes as texts, in UTC on both databases: to make datetimes takes longer than the query.
    places = {f"{first_at + n * MINUTE:%Y-%m-%d %H:%M}": n for n in range(SHOWN)}
    rows = Minute.objects.filter(topology__in=found, minute_at__gte=first_at)
    for key, at, lateness, *numbers in rows.annotate(
        text=Cast("minute_at", TextField())
    ).values_list("topology_id", "text", "lateness_json", "entered", "left", "late", "died"):
        if (place := places.get(at[:16])) is not None:
            found[key][place] = Counts(*numbers)
        if lateness != NO_LATENESS:
            add_lateness(late[key], lateness)
    return {
        key: Flow(last_at, tuple(known.get(place, none) for place in range(SHOWN)), late[key])
        for key, known in found.items()
    }


def count_by_span(
    topologies: Collection[int], first_at: datetime, now: datetime
) -> dict[int, dict[int, tuple[int, int]]]:
    """Topology -> place -> how many entered and left in these ten minutes.

    Place 0 begins at `first_at`, a whole ten minutes. Of a place without any row nothing is known.
    """
    last = int((now - first_at) / SPAN_DRAWN)
    # The texts of the minutes without their last digit, as in `flows`.
    places = {f"{first_at + n * SPAN_DRAWN:%Y-%m-%d %H:%M}"[:15]: n for n in range(last + 1)}
    rows = Minute.objects.filter(topology__in=topologies, minute_at__gte=first_at)
    rows = rows.annotate(span=Substr(Cast("minute_at", TextField()), 1, 15)).order_by()
    found: dict[int, dict[int, tuple[int, int]]] = {pk: {} for pk in topologies}
    sums = rows.values_list("topology_id", "span").annotate(Sum("entered"), Sum("left"))
    for key, text, entered, left in sums:
        if (place := places.get(text)) is not None:
            found[key][place] = entered, left
    return found


def _add_up(minutes: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*minutes, strict=True)))


def add_lateness(total: Counter[int], stored: str) -> None:
    """Add the buckets of a stored minute."""
    for bucket, number in orjson.loads(stored).items():
        total[int(bucket)] += number


def count(topology: Topology, events: Iterable[MessageEvent], closed: Iterable[ClosedTrip]) -> None:
    """Add these events, and the lateness of the rows that they closed, to their minutes.

    Within the caller's transaction.
    """
    ended = list(closed)
    minutes: defaultdict[datetime, Counter[int]] = defaultdict(Counter)
    for left_at, late in _measured(ended):
        bucket = buckets.bucket_of(late / timedelta(milliseconds=1))
        minutes[_minute(left_at)][bucket] += 1
    counts, lateness = tally(events, ended), minutes
    for minute_at in counts.keys() | lateness.keys():
        rows = Minute.objects.select_for_update()
        row, _ = rows.get_or_create(topology=topology, minute_at=minute_at)
        for name, number in counts[minute_at].items():
            setattr(row, name, getattr(row, name) + number)
        add_lateness(lateness[minute_at], row.lateness_json)
        stored = {str(bucket): number for bucket, number in sorted(lateness[minute_at].items())}
        row.lateness_json = orjson.dumps(stored).decode()
        row.save()


def count_taken_out(topology: Topology, number: int, at: datetime) -> None:
    """Add messages that left without an event of it. Within the caller's transaction."""
    row, _ = Minute.objects.get_or_create(topology=topology, minute_at=_minute(at))
    Minute.objects.filter(pk=row.pk).update(left=F("left") + number)


def tally(
    events: Iterable[MessageEvent], closed: Iterable[ClosedTrip]
) -> defaultdict[datetime, Counter[str]]:
    """Minute -> how many entered, left, died, late in it."""
    minutes: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for event in events:
        if event.kind == "scheduled":
            counts = minutes[_minute(event.recorded_at)]
            counts["entered"] += 1
            counts["died"] += bool(event.death_reason)
        elif event.kind == "delivered":
            minutes[_minute(event.recorded_at)]["left"] += 1
    for left_at, late in _measured(closed):
        if late > OVERDUE_AFTER:
            minutes[_minute(left_at)]["late"] += 1
    return minutes


def _measured(closed: Iterable[ClosedTrip]) -> Iterator[tuple[datetime, timedelta]]:
    """When each left and how late, without those whose lateness may be the recorder's."""
    for row in closed:
        late = measure_lateness(row) if row.caught_up else None
        if late is not None and row.left_at is not None:
            yield row.left_at, late


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
