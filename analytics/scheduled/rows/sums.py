"""Sums of what falls due before a moment, by whole days, hours, minutes and at last the rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate
from typing import Any

from django.db.models import Aggregate, BigIntegerField, Count, Func, QuerySet, Sum, Value
from django.db.models.sql.compiler import SQLCompiler

from analytics.models import DueCount, ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.scheduled.rows.due_counts import DAY, HOUR, MINUTE, floor

Points = Sequence[datetime | None]


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


class Group:
    """Topologies whose messages due before the same time count as delivered."""

    def __init__(
        self, ids: Collection[int], destination: str, delivered_before: datetime | None
    ) -> None:
        self._ids = ids
        self._destination = destination
        self._delivered_before = delivered_before

    @cached_property
    def days(self) -> Sums:
        rows = self._of(DueCount.objects.filter(width=DAY))
        if self._delivered_before is not None:
            rows = rows.filter(due_at__gte=floor(self._delivered_before, DAY))
        return Sums(summed(rows))

    def before(self, points: Points) -> list[int]:
        """How many wait that are due before each of these moments."""
        delivered_before = self._delivered_before
        if delivered_before is None:
            return self._up_to(points)
        later = [point and max(point, delivered_before) for point in points]
        *numbers, delivered = self._up_to([*later, delivered_before])
        return [max(0, number - delivered) for number in numbers]

    def within(
        self, from_at: datetime, until_at: datetime, widths: Sequence[int]
    ) -> Iterator[tuple[QuerySet[Any], Aggregate]]:
        """Counts of these widths, and rows at the edges, of what waits and is due in a range.

        Each with the sum of its messages.
        """
        first = max(from_at, self._delivered_before or from_at)
        for width, since, until in split(first, until_at, widths):
            rows = self._of(
                DueCount.objects.filter(width=width)
                if width
                else ScheduledMessage.objects.filter(WAITING)
            )
            within = rows.filter(due_at__gte=since, due_at__lt=until).order_by()
            yield within, Sum("waiting") if width else Count("pk")

    def _up_to(self, points: Points) -> list[int]:
        moments = {point for point in points if point is not None}
        hours = self._within(moments, HOUR, DAY)
        minutes = self._within(moments, MINUTE, HOUR)
        cut = sorted(at for at in moments if minutes.at(floor(at, MINUTE)))
        of_rows = self._rows_up_to([at for at in cut if at != floor(at, MINUTE)])

        def number(point: datetime | None) -> int:
            if point is None:
                return self.days.before(None)
            day_at, hour_at, minute_at = (floor(point, width) for width in (DAY, HOUR, MINUTE))
            of_day = hours.before(hour_at) - hours.before(day_at)
            of_hour = minutes.before(minute_at) - minutes.before(hour_at)
            return self.days.before(day_at) + of_day + of_hour + of_rows.get(point, 0)

        return [number(point) for point in points]

    def _within(self, moments: Iterable[datetime], width: int, whole: int) -> Sums:
        """The minutes of the hours that these moments cut, or the hours of the days, up to them."""
        last: dict[datetime, datetime] = {}
        for at in moments:
            whole_at, part_at = floor(at, whole), floor(at, width)
            last[whole_at] = max(part_at, last.get(whole_at, part_at))
        rows = self._of(DueCount.objects.filter(width=width)).order_by()
        parts = [
            rows.filter(due_at__gte=whole_at, due_at__lte=part_at)
            .values_list("due_at")
            .annotate(number=Sum("waiting"))
            for whole_at, part_at in last.items()
        ]
        return Sums(unite(parts))

    def _rows_up_to(self, moments: Sequence[datetime]) -> dict[datetime, int]:
        """How many rows are due from the beginning of its minute to before each moment."""
        rows = self._of(ScheduledMessage.objects.filter(WAITING))
        parts = [
            rows.filter(due_at__gte=floor(at, MINUTE), due_at__lt=at)
            .order_by()
            .values_list(Value(place))
            .annotate(number=Count("pk"))
            for place, at in enumerate(moments)
        ]
        return {moments[place]: number for place, number in unite(parts)}

    def _of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        rows = rows.filter(topology__in=self._ids)
        return rows.filter(destination=self._destination) if self._destination else rows


def split(
    from_at: datetime, until_at: datetime, widths: Sequence[int]
) -> Iterator[tuple[int, datetime, datetime]]:
    """A range as whole times of these widths, the longest first, and with 0 what they leave."""
    if from_at >= until_at:
        return
    if not widths:
        yield 0, from_at, until_at
        return
    width, *narrower = widths
    first, last = floor(from_at, width), floor(until_at, width)
    first += timedelta(seconds=width) if first < from_at else timedelta(0)
    if first >= last:
        yield from split(from_at, until_at, narrower)
        return
    yield from split(from_at, first, narrower)
    yield width, first, last
    yield from split(last, until_at, narrower)


def unite(parts: Sequence[QuerySet[Any, Any]]) -> list[Any]:
    """Small queries as one."""
    if not parts:
        return []
    return list(parts[0].union(*parts[1:], all=True) if parts[1:] else parts[0])


def summed(rows: QuerySet[DueCount]) -> list[tuple[datetime, int]]:
    """The counts by when they begin."""
    return list(rows.order_by().values_list("due_at").annotate(number=Sum("waiting")))


class Sums:
    """Numbers by moment, to be summed up to any moment."""

    def __init__(self, numbers: Iterable[tuple[datetime, int]]) -> None:
        self.numbers = dict(sorted(numbers))
        self._moments = list(self.numbers)
        self._totals = [0, *accumulate(self.numbers.values())]

    def before(self, moment: datetime | None) -> int:
        place = len(self._moments) if moment is None else bisect_left(self._moments, moment)
        return self._totals[place]

    def at(self, moment: datetime) -> int:
        return self.numbers.get(moment, 0)
