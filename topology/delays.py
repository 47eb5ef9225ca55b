"""Durations as people write them: "1h30m", "250ms", "2d 4h" <-> timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|w|d|h|m|s)?", re.IGNORECASE)


class DelayError(ValueError):
    """The text is not a duration; the message shows a valid one."""


def parse_delay(text: str) -> timedelta:
    """Read a duration such as "90", "1h30m", "2.5s" or "250ms"; a bare number is seconds.

    A part of a millisecond is rounded up. Raises DelayError for anything else, for a negative one
    and for one past 100 years.
    """
    wanted = text.strip()
    hint = f"“{text}” is not a duration. Enter a duration such as 90s, 5m, 1h30m or 250ms."
    if not wanted:
        raise DelayError(
            "The duration is missing. Enter a duration such as 90s, 5m, 1h30m or 250ms."
        )
    total_ms = Decimal(0)
    position = 0
    while position < len(wanted):
        part = _PART.match(wanted, position)
        if part is None:
            raise DelayError(hint)
        unit = (part[2] or "s").lower()
        if part[2] is None and part[0].strip() != wanted:
            raise DelayError(hint)
        total_ms += Decimal(part[1]) * UNITS_MS[unit]
        position = part.end()
        while position < len(wanted) and wanted[position] == " ":
            position += 1
    if total_ms > 100 * 365 * UNITS_MS["d"]:
        raise DelayError(f"“{text}” is longer than a hundred years. Enter a shorter duration.")
    return timedelta(milliseconds=math.ceil(total_ms))


def format_delay(delay: timedelta) -> str:
    """Write a duration shortly and exactly to the millisecond: "1h30m", "250ms", "0s"."""
    remaining = milliseconds(delay)
    sign = "-" if remaining < 0 else ""
    remaining = abs(remaining)
    words = []
    for unit, size in UNITS_MS.items():
        count, remaining = divmod(remaining, size)
        if count:
            words.append(f"{count}{unit}")
    return sign + ("".join(words) or "0s")


def in_words(delay: timedelta) -> str:
    """The same, and from a year on roughly in years too: nobody counts so many weeks."""
    years = delay / timedelta(days=365.25)
    exact = format_delay(delay)
    return exact if years < 1 else f"{exact}, about {years:.1f} years"


def milliseconds(delay: timedelta) -> int:
    """Whole milliseconds, rounded up: a delay is never shorter than requested."""
    return -(-delay // timedelta(milliseconds=1))
