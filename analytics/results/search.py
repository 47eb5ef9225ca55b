"""What finds the messages that the rows of a table link to."""

from __future__ import annotations

import re
from datetime import date, timedelta
from urllib.parse import urlencode

from analytics.results.read import Report

# What a search takes for itself within quotes.
_QUOTED, _ESCAPED = re.compile(r'["\\*]'), r"\\\g<0>"


def search_of(first: date, last: date, **values: str) -> str:
    """What finds the messages parked on these days, by the fields that have a value."""
    quoted = (f'{name}:"{_QUOTED.sub(_ESCAPED, value)}"' for name, value in values.items() if value)
    days = f"parked:>={first} parked:<{last + timedelta(days=1)}"
    return " ".join((*quoted, days, "state:any"))


def search_parked(report: Report, number: int, days: tuple[date, date], **values: str) -> str:
    """`search_of`; "" where the `number` of parked messages is zero, or generated events are
    counted: of these no message is parked.
    """
    first, last = days
    is_generated = any(first <= day <= last for day in report.generated_days)
    return "" if is_generated or not number else search_of(first, last, **values)


def bucket_of(kind: str, number: object, **values: str | int | float | None) -> str:
    """What finds the recorded messages of a row (`results.messages.read_bucket`); "" of a row whose
    `number` of them is zero.
    """
    return urlencode({"kind": kind, **values}) if number else ""
