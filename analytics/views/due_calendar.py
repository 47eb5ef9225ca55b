"""The calendar of due messages, as a page shows it: a bar for each hour, and overloads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, Count, Func
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone

from analytics import consumption
from analytics.scheduled.pages.lines import scope_of_list
from analytics.scheduled.queries.listing import Filter, written_moment
from analytics.scheduled.summaries.counts import MOST, Scope, find_horizon
from topology.content.text import count_text
from topology.models import Broker, Topology

DAYS = 7
MINUTE, HOUR = 60, 3600
# Seconds of a quarter of an hour, for time zones that are no whole hours.
QUARTER = 900
# Most overloads that are counted; the page shows a few of them.
MOST_OVERLOADS = 1000
HOURS = 24
LEVELS = 6
SHOWN_OVERLOADS = 5


@dataclass(frozen=True)
class Cell:
    """An hour: `level`, the height of its bar, is from 0 (nothing) to LEVELS, `description` says
    all of it in words. `number` is None where nothing is counted any more.
    """

    number: int | None
    text: str
    level: int
    url: str
    description: str
    is_overload: bool


@dataclass(frozen=True)
class Bar:
    """An hour in a chart of 100 units of height, from the top."""

    x: int
    y: float
    cell: Cell

    @property
    def height(self) -> float:
        return 100 - self.y


@dataclass(frozen=True)
class Day:
    label: str
    cells: Sequence[Cell]
    is_counted: bool

    @property
    def total(self) -> int:
        return sum(cell.number or 0 for cell in self.cells)


@dataclass(frozen=True)
class DueCalendar:
    days: Sequence[Day]
    overloads: Sequence[tuple[Overload, str]]
    overload_count: int
    unmeasured: Sequence[str]
    zone: str
    counted_until: datetime | None
    most: int = MOST

    @property
    def hours(self) -> range:
        return range(HOURS)

    @property
    def total(self) -> int:
        return sum(day.total for day in self.days)

    @property
    def bars(self) -> Sequence[Bar]:
        """The hours as bars of a chart; those that are not counted have none."""
        cells = [cell for day in self.days for cell in day.cells]
        most = max((cell.number or 0 for cell in cells), default=0)
        return [
            Bar(10 * place, round(100 - 100 * cell.number / most, 1), cell)
            for place, cell in enumerate(cells)
            if cell.number
        ]

    @property
    def width(self) -> int:
        return 10 * HOURS * len(self.days)

    @property
    def busiest(self) -> Cell:
        return max(
            (cell for day in self.days for cell in day.cells), key=lambda one: one.number or 0
        )


def due_calendar(
    brokers: Sequence[Broker], topologies: Sequence[Topology], filters: Filter, now: datetime
) -> DueCalendar | None:
    """Seven days from the first day of the filter or from today; None where a text is searched."""
    if filters.text or filters.problems or filters.is_stuck or filters.is_overdue:
        return None
    local = timezone.localtime(max(filters.from_at, now) if filters.from_at else now)
    first_at = local.replace(hour=0, minute=0, second=0, microsecond=0)
    days = [first_at + timedelta(days=number) for number in range(DAYS)]
    best = consumption.best_minutes(brokers)
    scope = scope_of_list(topologies, filters, now)
    found = read_calendar(scope, first_at, days[-1] + timedelta(days=1), best)
    return _calendar(found, days, filters)


def near_overload(
    brokers: Sequence[Broker], topologies: Sequence[Topology], filters: Filter, now: datetime
) -> Overload | None:
    """The largest of the next hour, whatever text or due time the filter has: one query."""
    best = consumption.best_minutes(brokers)
    if not best:
        return None
    scope = scope_of_list(topologies, filters, now)
    until_at = find_horizon(scope, now, now + timedelta(seconds=HOUR))
    measured = list({destination for _, destination in best})
    return next(_overloads(scope, now, until_at, measured, best), None)


def _calendar(found: Calendar, days: Sequence[datetime], filters: Filter) -> DueCalendar:
    until_at = days[-1] + timedelta(days=1)
    counted_until = found.counted_until if found.counted_until < until_at else None
    # At the end of summer time two hours are one cell.
    numbers = Counter[tuple[date, int]]()
    bars: defaultdict[tuple[date, int], list[datetime]] = defaultdict(list)
    for at, number in found.counts.items():
        local = timezone.localtime(at)
        numbers[local.date(), local.hour] += number
        bars[local.date(), local.hour].append(at)
    overloads = {
        (local.date(), local.hour) for local in (timezone.localtime(h.at) for h in found.overloads)
    }
    most = max(numbers.values(), default=0)
    lines = []
    for day in days:
        cells = []
        for hour in range(HOURS):
            place = (day.date(), hour)
            number, is_overload = numbers[place], place in overloads
            begins_at = day.replace(hour=hour)
            ends_at = begins_at + timedelta(hours=1)
            if counted_until and counted_until <= begins_at:
                words = f"{day:%a %d %b} {hour:02}:00: not counted"
                url = _link(filters, begins_at, timedelta(hours=1))
                cells.append(Cell(None, "?", 0, url, words, is_overload=False))
                continue
            least = "at least " if counted_until and counted_until < ends_at else ""
            words = f"{day:%a %d %b} {hour:02}:00: {least}{count_text(number)} due"
            cells.append(
                Cell(
                    number,
                    short_count(number),
                    -(-LEVELS * number // most) if most else 0,
                    _link_of_cell(filters, bars[place]) if number else "",
                    f"{words}, overload" if is_overload else words,
                    is_overload,
                )
            )
        is_counted = counted_until is None or day + timedelta(days=1) <= counted_until
        lines.append(Day(f"{day:%a %d %b}", cells, is_counted))
    shown = [
        (one, _link(filters, one.at, timedelta(minutes=1), one.destination))
        for one in found.overloads[:SHOWN_OVERLOADS]
    ]
    zone = f"{days[0]:%Z}"
    return DueCalendar(lines, shown, len(found.overloads), found.unmeasured, zone, counted_until)


def _link_of_cell(filters: Filter, bars: Sequence[datetime]) -> str:
    """The link to all of the local hour: at the end of summer time it is two hours long."""
    first_at, last_at = (
        at - timedelta(minutes=timezone.localtime(at).minute) for at in (min(bars), max(bars))
    )
    return _link(filters, first_at, last_at - first_at + timedelta(hours=1))


def _link(filters: Filter, at: datetime, span: timedelta, destination: str = "") -> str:
    changes = {"destination": destination} if destination else {}
    return filters.url(from_=written_moment(at), until=written_moment(at + span), **changes)


def short_count(number: int) -> str:
    """A count in at most four signs: "950", "1.2k", "34k", "5.1M"; "" for zero."""
    if number < 1000:
        return str(number or "")
    size, unit = (number / 1000, "k") if number < 999_500 else (number / 1_000_000, "M")
    return f"{size:.1f}{unit}" if size < 9.95 else f"{size:.0f}{unit}"


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


class BarNumber(Func):
    """The bar of so many seconds since 1970 in which a time lies, computed by the database."""

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
