"""What falls due by hour over some days, and the minutes that are too much for a destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, Count, Func
from django.db.models.sql.compiler import SQLCompiler

from analytics.scheduled.summaries.counts import Scope, find_horizon

DAYS = 7
MINUTE, HOUR = 60, 3600
# Seconds of a quarter of an hour, for time zones that are no whole hours.
QUARTER = 900
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

    That lies within one hour of the time zone of the calendar. Nothing is counted that is due from
    `counted_until` on: before it there are as many messages as a page counts. `unmeasured` are
    destinations with messages in these days and without a known best minute.
    """

    counts: Mapping[datetime, int]
    counted_until: datetime
    overloads: tuple[Overload, ...]
    unmeasured: tuple[str, ...]


def read_calendar(
    scope: Scope, first_at: datetime, until_at: datetime, best: Mapping[tuple[int, str], int]
) -> Calendar:
    """The calendar between two moments; `best` is by broker and destination."""
    horizon = find_horizon(scope, first_at, until_at)
    bar = HOUR if _is_hourly(first_at) and _is_hourly(until_at) else QUARTER
    rows = scope.rows(first_at, horizon).values_list(BarNumber("due_at", bar), "destination")
    counts, by_destination = Counter[datetime](), Counter[str]()
    # A minute has no more than its hour.
    most = Counter[str]()
    for place, destination, number in rows.annotate(number=Count("pk")):
        counts[datetime.fromtimestamp(place * bar, UTC)] += number
        by_destination[destination] += number
        most[destination] = max(most[destination], number)
    measured = {destination for _, destination in best}
    suspected = [name for (_, name), messages in best.items() if most[name] > messages]
    found = _overloads(scope, max(first_at, scope.now), horizon, suspected, best)
    return Calendar(
        counts,
        horizon,
        tuple(one for one, _ in zip(found, range(MOST_OVERLOADS), strict=False)),
        tuple(name for name, _ in by_destination.most_common() if name not in measured),
    )


def find_near_overload(scope: Scope, best: Mapping[tuple[int, str], int]) -> Overload | None:
    """The largest overload of the next hour: one query, of the destinations with a best minute."""
    if not best:
        return None
    until_at = find_horizon(scope, scope.now, scope.now + timedelta(seconds=HOUR))
    measured = list({destination for _, destination in best})
    return next(_overloads(scope, scope.now, until_at, measured, best), None)


class BarNumber(Func):
    """In which bar of so many seconds since 1970 a moment lies, worked out by the database."""

    output_field = BigIntegerField()

    def __init__(self, moment: str, width: int) -> None:
        super().__init__(moment, width=width)

    def as_sqlite(self, compiler: SQLCompiler, connection: Any, **context: Any) -> Any:
        seconds = "CAST(strftime('%%%%s', %(expressions)s) AS INTEGER)"
        return self.as_sql(compiler, connection, template=f"({seconds} / %(width)s)", **context)

    def as_postgresql(self, compiler: SQLCompiler, connection: Any, **context: Any) -> Any:
        seconds = "EXTRACT(EPOCH FROM %(expressions)s)::bigint"
        return self.as_sql(compiler, connection, template=f"({seconds} / %(width)s)", **context)


def _is_hourly(local: datetime) -> bool:
    return not (local.utcoffset() or timedelta(0)) % timedelta(seconds=HOUR)


def _overloads(
    scope: Scope,
    from_at: datetime,
    until_at: datetime,
    suspected: list[str],
    best: Mapping[tuple[int, str], int],
) -> Iterator[Overload]:
    """The largest first."""
    if not suspected:
        return
    sums = (
        scope.rows(from_at, until_at)
        .filter(destination__in=suspected)
        .values_list("topology__broker", "destination", BarNumber("due_at", MINUTE))
        .annotate(due=Count("pk"))
        .filter(due__gt=min(best.values()))
        .order_by("-due")
    )
    for broker, destination, minute, due in sums.iterator():
        if due > best.get((broker, destination), due):
            at = datetime.fromtimestamp(minute * MINUTE, UTC)
            yield Overload(destination, at, due, best[broker, destination])


def days_of(first_at: datetime) -> list[datetime]:
    """The beginning of each day of a calendar; `first_at` is the first, in its own time zone."""
    return [first_at + timedelta(days=number) for number in range(DAYS)]
