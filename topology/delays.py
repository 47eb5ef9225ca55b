"""Durations as people write them: "1h 30m", "250ms", "2d 4h" <-> timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

UNITS_MS = {
    "y": 31_536_000_000,
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|y|w|d|h|m|s)?", re.IGNORECASE)
_US, _SECOND_US = 1000, 1_000_000
# From a duration on, the unit to which it is rounded.
_STEPS_US = (
    (31_536_000 * _SECOND_US, 86_400 * _SECOND_US),
    (86_400 * _SECOND_US, 3600 * _SECOND_US),
    (3600 * _SECOND_US, 60 * _SECOND_US),
    (60 * _SECOND_US, _SECOND_US),
    (_SECOND_US, 100 * _US),
    (10 * _US, _US),
    (0, 100),
)


class DelayError(ValueError):
    """The text is not a duration; the message shows a valid one."""


def parse_delay(text: str) -> timedelta:
    """Read a duration such as "90", "1h 30m", "2.5s" or "250ms"; a bare number is seconds.

    A part of a millisecond is rounded up. Raises DelayError for anything else, for a negative one
    and for one past 100 years.
    """
    wanted = text.strip()
    hint = f"“{text}” is not a duration. Enter a duration such as 90s, 5m, 1h 30m or 250ms."
    if not wanted:
        raise DelayError(
            "The duration is missing. Enter a duration such as 90s, 5m, 1h 30m or 250ms."
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
    """Write a duration exactly to the millisecond, as `parse_delay` reads it: "1h 30m", "2.5s"."""
    ms = milliseconds(delay)
    return f"-{_write(-ms * _US)}" if ms < 0 else _write(ms * _US)


def format_span(span: timedelta) -> str:
    """Write a measured duration in at most two units, rounded: "1h 30m", "2.1s", "64ms".

    times.js writes the same.
    """
    us = abs(span) // timedelta(microseconds=1)
    step = next(step for least, step in _STEPS_US if us >= least)
    text = _write((us + step // 2) // step * step)
    return f"-{text}" if span < timedelta(0) and text != "0s" else text


def format_ms(ms: float) -> str:
    """The same of milliseconds."""
    return format_span(timedelta(milliseconds=ms))


def _write(us: int) -> str:
    if 0 < us < _SECOND_US:
        return f"{us / _US:g}ms"
    words = []
    for unit in ("y", "d", "h", "m"):
        count, us = divmod(us, UNITS_MS[unit] * _US)
        if count:
            words.append(f"{count}{unit}")
    if us or not words:
        words.append(f"{us / _SECOND_US:g}s")
    return " ".join(words)


def milliseconds(delay: timedelta) -> int:
    """Whole milliseconds, rounded up: a delay is never shorter than requested."""
    return -(-delay // timedelta(milliseconds=1))
