"""PURE: values of foreign logs -> texts, numbers, moments and time spans. Raises RecordError."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from analytics.events import bounded_headers

UNITS_US = {
    **{"us": 1, "ms": 1000, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6},
}
# Characters of text that a pattern of an administrator reads: anybody may have written it.
LONGEST_TEXT = 1024 * 1024
NANOSECONDS, SPAN = "ns", "span"
TIMES = ("iso", "s", "ms", "us", NANOSECONDS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONG_FRACTION = re.compile(r"([.,]\d{6})\d+")
_SPAN = re.compile(r"(-)?(?:(\d+)\.)?(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_ISO_SPAN = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


class RecordError(ValueError):
    """A record is no event by its mapping; the message says why."""


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list):
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    return str(value)


def as_integer(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise RecordError(f"{as_text(value)[:80]!r} is no whole number.")
    return int(number)


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RecordError(f"{as_text(value)[:80]!r} is no number.")
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise RecordError(f"{as_text(value)[:80]!r} is no number.") from error
    if not number.is_finite() or abs(number) > Decimal(10) ** 19:
        raise RecordError(f"{as_text(value)[:80]!r} is out of range.")
    return number


def as_counted(number: int) -> int:
    if not 0 <= number < 2**53:
        raise RecordError(f"{number} is out of range.")
    return number


def as_boolean(value: Any) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return known[as_text(value).lower()]
    except KeyError as error:
        raise RecordError(f"{as_text(value)[:80]!r} is neither true nor false.") from error


def as_headers(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise RecordError("The headers are not JSON.") from error
    if not isinstance(value, Mapping):
        raise RecordError("The headers are not an object.")
    return bounded_headers(value)


def as_milliseconds(value: Any, unit: str) -> int:
    if unit == SPAN:
        return round(_span(as_text(value).strip()) * 1000)
    number = _number(value)
    us = number / 1000 if unit == NANOSECONDS else number * UNITS_US[unit]
    return round(us / 1000)


def _span(text: str) -> Decimal:
    """The seconds of "00:01:30.5", "1.00:00:00" (.NET) or "PT90S" (ISO 8601)."""
    if found := _SPAN.fullmatch(text):
        minus, days, hours, minutes, seconds = found.groups()
        total = int(days or 0) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds)
        return -total if minus else total
    if found := _ISO_SPAN.fullmatch(text):
        parts = [Decimal(part or 0) for part in found.groups()]
        return parts[0] * 86_400 + parts[1] * 3600 + parts[2] * 60 + parts[3]
    raise RecordError(f"{text[:80]!r} is no time span such as 00:01:30 or PT90S.")


def as_moment(value: Any, form: str, zone: tzinfo | None) -> datetime:
    if form in TIMES and form != "iso":
        number = _number(value)
        us = number / 1000 if form == NANOSECONDS else number * UNITS_US[form]
        return _EPOCH + int(us) * _MICROSECOND
    text = as_text(value).strip()
    try:
        if form == "iso":
            at = datetime.fromisoformat(_LONG_FRACTION.sub(r"\1", text))
        else:
            at = datetime.strptime(text, form)  # noqa: DTZ007
    except ValueError as error:
        wanted = "a time in ISO 8601" if form == "iso" else f"a time like {form}"
        raise RecordError(f"{text[:80]!r} is not {wanted}.") from error
    if at.tzinfo is None:
        if zone is None:
            raise RecordError(f"{text[:80]!r} has no time zone. Set zone in the mapping.")
        at = at.replace(tzinfo=zone)
    return at.astimezone(UTC)


def in_base64(text: str) -> str:
    return b64encode(text.encode("utf-8", "surrogateescape")).decode()
