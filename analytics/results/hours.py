"""Hours of UTC days in the time zone of the reports."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.conf import settings

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
