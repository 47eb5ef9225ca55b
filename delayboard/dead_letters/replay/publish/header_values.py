"""AMQP header values as a person types them; pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from delayboard.dead_letters.replay.check.route_checker import is_finite

NO_NUMBER = "RabbitMQ closes the connection at NaN and infinite numbers."
NO_TIME = "Type a time in UTC, such as 2026-11-22 03:00:00."
# Characters of a value that one line of a form shows.
LONG = 60


class HeaderRow(NamedTuple):
    """A header or property; `lock` says why it cannot be changed, "" when it can."""

    name: str = ""
    type: str = "text"
    text: str = ""
    lock: str = ""

    @property
    def is_long(self) -> bool:
        """Whether one line does not show the value."""
        return len(self.text) > LONG or "\n" in self.text


def make_header_rows(values: Mapping[str, Any]) -> tuple[HeaderRow, ...]:
    return tuple(
        HeaderRow(name, name_type(value), format_value(value)) for name, value in values.items()
    )


def name_type(value: Any) -> str:
    """The AMQP type of a value in a word, one of TYPES."""
    names: list[tuple[type, str]] = [
        (bool, "boolean"),
        (int, "integer"),
        (float, "float"),
        (Decimal, "decimal"),
        (str, "text"),
        (bytes, "bytes"),
        (datetime, "time"),
        (Mapping, "table"),
        (Sequence, "list"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "nothing")


def format_value(value: Any) -> str:
    """A value as a person types it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case bytes():
            return value.hex(" ")
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} UTC"
        case None:
            return ""
        case Mapping() | list() | tuple():
            return json.dumps(value, indent=2, ensure_ascii=False, default=format_value)
    return str(value)


def _parse_integer(text: str) -> int:
    digits = text.strip()
    plain = digits.removeprefix("-")
    if len(digits) > 30 or not (plain.isascii() and plain.isdigit()):
        raise ValueError(f"“{text[:40]}” is no whole number.")
    return int(digits)


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"“{text[:40]}” is no number.") from None
    if not math.isfinite(number):
        raise ValueError(f"“{text[:40]}” cannot be sent. {NO_NUMBER}")
    return number


def _parse_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("Type true or false.")
    return word == "true"


def _parse_decimal(text: str) -> Decimal:
    try:
        return Decimal(text.strip()[:40])
    except InvalidOperation:
        raise ValueError(f"“{text[:40]}” is no decimal number.") from None


def _parse_time(text: str) -> datetime:
    """From a date and time in UTC, or from whole seconds since 1970."""
    sentence = text.strip()
    try:
        if sentence.isascii() and sentence.isdigit():
            return datetime.fromtimestamp(int(sentence[:20]), UTC)
        at = datetime.fromisoformat(sentence.removesuffix("UTC").strip())
        # In UTC it may be out of range.
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(NO_TIME) from None
    if at.timestamp() < 0:
        raise ValueError("AMQP holds no time before 1970.")
    return at


def _parse_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("Type the bytes as hexadecimal digits, such as 0a ff.") from None


def _parse_nothing(text: str) -> None:
    if text.strip():
        raise ValueError("It holds nothing: choose another type to give it a value.")


def _make_json_parser(kind: type, sentence: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(sentence) from None
        if not isinstance(value, kind):
            raise ValueError(sentence)
        if not is_finite(value):
            raise ValueError(f"It cannot be sent. {NO_NUMBER}")
        return value

    return parse


# By type: how a text is read. Each raises ValueError with a sentence.
TYPES: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "integer": _parse_integer,
    "float": _parse_float,
    "boolean": _parse_boolean,
    "decimal": _parse_decimal,
    "time": _parse_time,
    "bytes": _parse_bytes,
    "table": _make_json_parser(dict, 'Type a table as a JSON object, such as {"a": 1}.'),
    "list": _make_json_parser(list, "Type a list as a JSON array, such as [1, 2]."),
    "nothing": _parse_nothing,
}
