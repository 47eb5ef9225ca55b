"""What falls due by hour over some days, and the minutes that are too much for a destination."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, Sum

from analytics.scheduled.rows.due_counts import HOUR, MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope

DAYS = 7
# Of the offsets of time zones that are no whole hours.
QUARTER = 900
# A condition of more parts than that is slow.
MOST_RANGES = 50
# The page shows a few of them, and says how many there are.
MOST_OVERLOADS = 1000


@dataclass(frozen=True)
class Overload:
    """A minute with more due messages than the destination consumed in its `best` minute."""

    destination: str
    at: datetime
    due: int
    best: int


@dataclass(frozen=True)
class Calendar:
    """`counts` are the numbers of messages by the beginning of a time of at most an hour.

    That lies within one hour of the time zone of the calendar. `unmeasured` are destinations with
    messages in these days and without a known best minute.
    """

    first_at: datetime
    until_at: datetime
    counts: Mapping[datetime, int]
    overloads: tuple[Overload, ...]
    unmeasured: tuple[str, ...]


def read_calendar(
    scope: Scope, first_at: datetime, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Calendar:
    """The calendar between two moments; `best` is by broker and destination."""
    bar = HOUR if _is_hourly(first_at) and _is_hourly(until_at) else QUARTER
    found = {at: number for at, _, number in counts.by_time(scope, first_at, until_at, (), bar=bar)}
    measured = {destination for _, destination in best}
    waiting = counts.destinations(scope, first_at, until_at)
    return Calendar(
        first_at,
        until_at,
        found,
        tuple(_overloads(scope, max(first_at, scope.now), until_at, best)),
        tuple(name for name in waiting if name not in measured),
    )


def _is_hourly(local: datetime) -> bool:
    return not (local.utcoffset() or timedelta(0)) % timedelta(seconds=HOUR)


def _overloads(
    scope: Scope, first_at: datetime, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Iterable[Overload]:
    """The largest first."""
    # An hour has at least as many as each of its minutes, and there are far fewer hours.
    hours = list(_above(scope, HOUR, Q(due_at__gte=floor(first_at, HOUR)), until_at, best))
    if not hours:
        return []
    within = Q(due_at__gte=first_at) & _within_hours({overload.at for overload in hours})
    within &= Q(destination__in={overload.destination for overload in hours})
    found = _above(scope, MINUTE, within, until_at, best)
    return [overload for overload, _ in zip(found, range(MOST_OVERLOADS), strict=False)]


def _above(
    scope: Scope, width: int, within: Q, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Iterator[Overload]:
    """The counts of this width above the best minute of their destination, the largest first."""
    if not best:
        return
    rows = counts.still_to_come(scope, width).filter(within, due_at__lt=until_at)
    sums = (
        rows.filter(destination__in={destination for _, destination in best})
        .order_by()
        .values_list("topology__broker", "destination", "due_at")
        .annotate(due=Sum("waiting"))
        .filter(due__gt=min(best.values()))
        .order_by("-due")
    )
    for broker, destination, at, due in sums.iterator():
        if due > best.get((broker, destination), due):
            yield Overload(destination, at, due, best[broker, destination])


def _within_hours(hours: Collection[datetime]) -> Q:
    """Due in one of these hours; of very many, in their whole range."""
    hour = timedelta(seconds=HOUR)
    found = Q(due_at__gte=min(hours), due_at__lt=max(hours) + hour)
    if len(hours) > MOST_RANGES:
        return found
    one_of = Q(pk__in=[])
    for at in sorted(hours):
        one_of |= Q(due_at__gte=at, due_at__lt=at + hour)
    return found & one_of


def days_of(first_at: datetime) -> list[datetime]:
    """The beginning of each day of a calendar; `first_at` is the first, in its own time zone."""
    return [first_at + timedelta(days=number) for number in range(DAYS)]
