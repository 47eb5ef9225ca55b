"""Durations and relative times as people write them: "1h 30m", "5 minutes", "in 2 hours".

The one parser of both: each field and option for them shows DURATION_HELP or MOMENT_HELP.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
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
_WORDS = {
    "y": "yr yrs year years",
    "w": "wk wks week weeks",
    "d": "day days",
    "h": "hr hrs hour hours",
    "m": "min mins minute minutes",
    "s": "sec secs second seconds",
    "ms": "msec msecs millisecond milliseconds",
}
_UNITS = {unit: unit for unit in UNITS_MS}
_UNITS |= {word: unit for unit, words in _WORDS.items() for word in words.split()}
EXAMPLES = "90s, 5 min, 1h 30m or 250ms"
DURATION_HELP = f"A duration such as {EXAMPLES}; a number alone is seconds."
MOMENT_HELP = "A time such as now, +2h, in 2 hours, 1 day ago or 2026-11-21 15:30 (UTC)."
EARLIEST, LATEST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
# Forms of a relative time: text before its duration, text after it, sign.
_SHIFTS = (("+", "", 1), ("in ", "", 1), ("-", "", -1), ("", " ago", -1))
_US, _SECOND_US = 1000, 1_000_000
# Durations from which on a span is rounded, each with the unit.
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


class MomentError(ValueError):
    """The text is not a time; the message shows a valid one."""


def parse_delay(text: str) -> timedelta:
    """Read a duration such as "90", "1h 30m", "5 min" or "250ms"; a number alone is seconds.

    A part of a millisecond is rounded up. Raises DelayError for anything else, for a negative one
    and for one past 100 years.
    """
    wanted = text.strip()
    hint = f"“{text}” is not a duration. Enter a duration such as {EXAMPLES}."
    if not wanted:
        raise DelayError(f"The duration is missing. Enter a duration such as {EXAMPLES}.")
    total_ms = Decimal(0)
    position = 0
    while position < len(wanted):
        part = _PART.match(wanted, position)
        unit = _UNITS.get((part[2] or "s").lower()) if part else None
        if part is None or unit is None or (not part[2] and part[0].strip() != wanted):
            raise DelayError(hint)
        total_ms += Decimal(part[1]) * UNITS_MS[unit]
        position = part.end()
        while position < len(wanted) and wanted[position] == " ":
            position += 1
    if total_ms > 100 * 365 * UNITS_MS["d"]:
        raise DelayError(f"“{text}” is longer than a hundred years. Enter a shorter duration.")
    return timedelta(milliseconds=math.ceil(total_ms))


def read_shift(text: str) -> timedelta | None:
    """How far from now a relative time such as "+2h", "in 2 hours", "1 day ago" or "now" is.

    None for any other text. Raises DelayError.
    """
    folded = text.strip().lower()
    if folded == "now":
        return timedelta(0)
    for prefix, suffix, sign in _SHIFTS:
        if folded.startswith(prefix) and folded.endswith(suffix):
            span = folded.removeprefix(prefix).removesuffix(suffix)
            # A number alone would be seconds, which nobody expects here.
            if span.strip().isdecimal():
                raise DelayError(f"“{text}” has no unit. {MOMENT_HELP}")
            return sign * parse_delay(span)
    return None


def read_moment(text: str, now: datetime) -> datetime:
    """A moment such as "now", "+2h", "1 day ago" or "2026-11-21T15:30"; without a zone it is UTC.

    Raises MomentError.
    """
    wanted = text.strip()
    try:
        shift = read_shift(wanted)
        moment = datetime.fromisoformat(wanted) if shift is None else now + shift
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        if not EARLIEST <= moment < LATEST:
            raise OverflowError("this time is too close to the limits of the calendar")
        return moment
    except (ValueError, OverflowError) as error:
        raise MomentError(
            f"“{wanted}” is not a time. Enter a{MOMENT_HELP.removeprefix('A')}"
        ) from error


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
