"""What falls due by hour over some days, and the minutes that are too much for a destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from analytics.scheduled.rows.due import HOUR, MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope

DAYS = 7
# The page shows a few of them, and says how many there are.
MOST_HERDS = 1000


@dataclass(frozen=True)
class Herd:
    """A minute with more due messages than the destination consumed in its `best` minute."""

    destination: str
    at: datetime
    due: int
    best: int


@dataclass(frozen=True)
class Calendar:
    """`hours` are the counts of messages by the beginning of their hour (UTC).

    `unmeasured` are destinations with messages in these days and without a known best minute.
    """

    first_at: datetime
    until_at: datetime
    hours: Mapping[datetime, int]
    herds: tuple[Herd, ...]
    unmeasured: tuple[str, ...]


def read_calendar(
    scope: Scope, first_at: datetime, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Calendar:
    """The calendar between two moments; `best` is by broker and destination."""
    entries = counts.by_time(
        scope, floor(first_at, HOUR), until_at, MINUTE if scope.gone_before else HOUR, (), bar=HOUR
    )
    hours = Counter[datetime]()
    for at, _, number in entries:
        hours[at] += number
    measured = {destination for _, destination in best}
    waiting = counts.destinations(scope, first_at, until_at)
    return Calendar(
        first_at,
        until_at,
        hours,
        tuple(_herds(scope, max(first_at, floor(scope.now, MINUTE)), until_at, best)),
        tuple(name for name in waiting if name not in measured),
    )


def _herds(
    scope: Scope, first_at: datetime, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Iterable[Herd]:
    """The largest first."""
    if not best:
        return []
    rows = counts.still_to_come(scope, MINUTE).filter(due_at__gte=first_at, due_at__lt=until_at)
    sums = (
        rows.filter(destination__in={destination for _, destination in best})
        .order_by()
        .values_list("topology__broker", "destination", "due_at")
        .annotate(due=Sum("waiting"))
        .filter(due__gt=min(best.values()))
        .order_by("-due")
    )
    found = (
        Herd(destination, at, due, best[broker, destination])
        for broker, destination, at, due in sums.iterator()
        if due > best.get((broker, destination), due)
    )
    return [herd for herd, _ in zip(found, range(MOST_HERDS), strict=False)]


def days_of(first_at: datetime) -> list[datetime]:
    """The beginning of each day of a calendar; `first_at` is the first, in its own time zone."""
    return [first_at + timedelta(days=number) for number in range(DAYS)]
