"""A range of days, as the address of a page names it, the range before it, and its hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.conf import settings

ONE_DAY = timedelta(days=1)
RANGES = {"yesterday": 1, "7": 7, "28": 28, "90": 90}
LABELS = {"yesterday": "Yesterday", "7": "7 days", "28": "28 days", "90": "90 days"}
CUSTOM, DEFAULT = "custom", "7"
MOST_DAYS = 92
# First day of a range: there was no RabbitMQ before, and so no event.
EARLIEST_DAY = date(2007, 1, 1)
# Time after midnight until a day is complete: its last copies are synced within a second, and a
# batch may take a little more.
AFTER_MIDNIGHT = timedelta(minutes=10)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Period:
    """The days of a report, the first and the last included."""

    name: str
    first: date
    last: date

    @property
    def length(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def days(self) -> list[date]:
        return [self.first + number * ONE_DAY for number in range(self.length)]

    @property
    def before(self) -> Period:
        """The same number of days, up to the day before this period."""
        last = self.first - ONE_DAY
        return Period(CUSTOM, last - (self.length - 1) * ONE_DAY, last)


def read_period(values: Mapping[str, str], newest: date) -> tuple[Period, str]:
    """The range in the parameters, by default up to `newest`; and a sentence on an error."""
    name = values.get("range") or (CUSTOM if values.get("from") else DEFAULT)
    if name in RANGES:
        return Period(name, newest - (RANGES[name] - 1) * ONE_DAY, newest), ""
    usual = Period(DEFAULT, newest - (RANGES[DEFAULT] - 1) * ONE_DAY, newest)
    if name != CUSTOM:
        return usual, f"“{name[:40]}” is not a range. Choose one of the listed ranges."
    texts = (values.get("from", ""), values.get("to", "") or values.get("from", ""))
    days = []
    for text in texts:
        try:
            days.append(date.fromisoformat(text))
        except ValueError:
            return usual, f"“{text[:40]}” is not a date. Enter a date such as 2026-11-20."
    first, last = days
    if first > last:
        return usual, "The range ends before it begins. Swap the two dates."
    if last - first >= MOST_DAYS * ONE_DAY:
        return usual, f"The range is longer than {MOST_DAYS} days. Choose a shorter range."
    if first < EARLIEST_DAY:
        return usual, f"{first} is too long ago. Choose a later day."
    return Period(CUSTOM, first, last), ""


def find_usual(period: Period, newest: date) -> str:
    """The name of the usual range up to `newest` that has these days; "" if none has."""
    usual = (name for name, length in RANGES.items() if length == period.length)
    return next(usual, "") if period.last == newest else ""


def complete_at(day: date) -> datetime:
    """The time from which on a UTC day is over and its log complete."""
    return datetime.combine(day, time(), UTC) + ONE_DAY + AFTER_MIDNIGHT


def zone_name() -> str:
    name: str = settings.NIGHTLY_TIME_ZONE
    return name


def local_hours(day: date) -> tuple[datetime, ...]:
    """When each of the 24 hours of a UTC day begins, in the time zone of the reports."""
    return _hours(day, zone_name())


def whole_hours(begin: datetime, end: datetime) -> Iterator[datetime]:
    """The hours (UTC) that are wholly between these moments, by their begin."""
    hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    hour += HOUR if hour < begin else timedelta()
    while hour + HOUR <= end:
        yield hour
        hour += HOUR


@lru_cache(maxsize=1000)
def _hours(day: date, zone: str) -> tuple[datetime, ...]:
    begin = datetime.combine(day, time(), UTC)
    return tuple((begin + hour * HOUR).astimezone(ZoneInfo(zone)) for hour in range(24))
