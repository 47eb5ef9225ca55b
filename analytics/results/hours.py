"""Hours of UTC days in the time zone of the reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.conf import settings

from analytics.results.figures import WAITS, Figures

HOUR = timedelta(hours=1)


def zone_name() -> str:
    """The time zone of hours on pages and in files."""
    name: str = settings.NIGHTLY_TIME_ZONE
    return name


def local_hours(day: date) -> tuple[datetime, ...]:
    """When each of the 24 hours of a UTC day begins, in the time zone of the reports."""
    return _hours(day, zone_name())


@lru_cache(maxsize=1000)
def _hours(day: date, zone: str) -> tuple[datetime, ...]:
    begin = datetime.combine(day, time(), UTC)
    return tuple((begin + hour * HOUR).astimezone(ZoneInfo(zone)) for hour in range(24))


def by_local_hour(days: Mapping[date, Figures], table: str) -> dict[str, int]:
    """A table by hour added up over the days, by the hour's label such as "05:30", sorted."""
    found: Counter[str] = Counter()
    for day, figures in days.items():
        counts = figures.by(table)
        for hour, begin in enumerate(local_hours(day)):
            found[f"{begin:%H:%M}"] += counts[hour]
    return dict(sorted(found.items()))


def late_by_local_hour(days: Mapping[date, Figures]) -> dict[str, Counter[int]]:
    """Measured deliveries by bucket of lateness, by the label of the hour of entry, sorted."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for day, figures in days.items():
        hours = local_hours(day)
        for (hour, bucket), number in figures.items("late_by_hour"):
            found[f"{hours[int(hour)]:%H:%M}"][int(bucket)] += number
    return dict(sorted(found.items()))


def waiting(days: Mapping[date, Figures], earlier: Mapping[date, Figures]) -> dict[str, float]:
    """Messages in delays at the end of an hour, the mean of the days, by the hour's label.

    `earlier` are the figures of the days before, whose messages may still wait.
    """
    if not days:
        return {}
    first = min(days)
    changes: Counter[int] = Counter()
    for day, figures in {**earlier, **days}.items():
        offset = 24 * (day - first).days
        for (hour, hours), number in figures.items(WAITS):
            changes[offset + int(hour)] += number
            changes[offset + int(hour) + int(hours)] -= number
    last = 24 * ((max(days) - first).days + 1)
    now = sum(number for place, number in changes.items() if place < 0)
    sums: Counter[str] = Counter()
    for place in range(last):
        now += changes[place]
        day = first + timedelta(days=place // 24)
        if day in days:
            sums[f"{local_hours(day)[place % 24]:%H:%M}"] += now
    return {label: number / len(days) for label, number in sorted(sums.items())}
