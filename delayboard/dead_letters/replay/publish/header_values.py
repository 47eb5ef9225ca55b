"""AMQP header values as a person types them, by the type that a tag stands for; pure."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from delayboard.dead_letters.replay.check.route_checker import is_finite
from topology.broker.properties.field_values import encode_text, write_value

_WHOLE = {b"b": ">b", b"B": ">B", b"s": ">h", b"u": ">H", b"I": ">i", b"i": ">I"}
_WHOLE |= {b"l": ">q", b"L": ">q"}
_FLOATS = {b"f": ">f", b"d": ">d"}
# Tag -> the type in a word.
NAMES = {b"S": "text", b"x": "bytes", b"t": "boolean", b"T": "time", b"D": "decimal"}
NAMES |= {b"F": "table", b"A": "list", b"V": "nothing"}
NAMES |= dict.fromkeys(_WHOLE, "integer") | dict.fromkeys(_FLOATS, "float")
# The types of a header that is added, with the tag that it gets; an integer may need the wider l.
TYPES = {"text": b"S", "integer": b"I", "float": b"d", "boolean": b"t", "decimal": b"D"}
TYPES |= {"time": b"T", "bytes": b"x", "table": b"F", "list": b"A", "nothing": b"V"}


NO_NUMBER = "A broker closes the connection at a number that is none, or is infinite."


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


def encode_value(kind: str, tag: bytes, text: str, *, is_new: bool = False) -> bytes:
    """Tag and bytes. Raises ValueError with a sentence."""
    if kind == "integer":
        return _encode_integer(tag, text, is_new=is_new)
    if kind == "float":
        return _encode_float(tag, text)
    if kind == "nothing" and text.strip():
        raise ValueError("It holds nothing: choose another type to give it a value.")
    if kind == "time":
        return b"T" + struct.pack(">Q", _parse_seconds(text))
    value = _READ[kind](text)
    if isinstance(value, (str, bytes)):
        # Bytes that are no text may stand under the tag of a text.
        data = value if isinstance(value, bytes) else encode_text(value)
        return tag + struct.pack(">I", len(data)) + data
    return write_value(value)


def _encode_integer(tag: bytes, text: str, *, is_new: bool) -> bytes:
    digits = text.strip()
    if len(digits) > 30 or not digits.removeprefix("-").isascii() or not _is_number(digits):
        raise ValueError(f"“{text[:40]}” is no whole number.")
    number = int(digits)
    if is_new:
        return write_value(number)
    form = _WHOLE[tag]
    try:
        return tag + struct.pack(form, number)
    except struct.error:
        bits = 8 * struct.calcsize(form)
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if form[1].islower() else (0, 0)
        most = most or 2**bits - 1
        raise ValueError(
            f"{number} does not fit: this header holds a whole number from {least} to {most}."
        ) from None


def _is_number(digits: str) -> bool:
    return digits.removeprefix("-").isdigit()


def _encode_float(tag: bytes, text: str) -> bytes:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"“{text[:40]}” is no number.") from None
    if not math.isfinite(number):
        raise ValueError(f"“{text[:40]}” cannot be sent. {NO_NUMBER}")
    try:
        return tag + struct.pack(_FLOATS[tag], number)
    except OverflowError:
        raise ValueError(f"“{text[:40]}” does not fit into this header's number.") from None


def _parse_boolean(text: str) -> bool:
    said = text.strip().lower()
    if said not in ("true", "false"):
        raise ValueError("Type true or false.")
    return said == "true"


def _parse_decimal(text: str) -> Decimal:
    try:
        return Decimal(text.strip()[:40])
    except InvalidOperation:
        raise ValueError(f"“{text[:40]}” is no decimal number.") from None


def _parse_seconds(text: str) -> int:
    """Whole seconds since 1970, from them or from a date and time in UTC."""
    said = text.strip()
    if said.isascii() and said.isdigit() and int(said[:20]) < 2**64:
        return int(said[:20])
    try:
        at = datetime.fromisoformat(said.removesuffix("UTC").strip())
    except ValueError:
        raise ValueError("Type a time in UTC, such as 2026-11-22 03:00:00.") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    seconds = int(at.timestamp())
    if seconds < 0:
        raise ValueError("AMQP holds no time before 1970.")
    return seconds


def _parse_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("Type the bytes as hexadecimal digits, such as 0a ff.") from None


def _make_json_parser(kind: type, said: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(said) from None
        if not isinstance(value, kind):
            raise ValueError(said)
        if not is_finite(value):
            raise ValueError(f"It cannot be sent. {NO_NUMBER}")
        return value

    return parse


_READ: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "bytes": _parse_bytes,
    "boolean": _parse_boolean,
    "decimal": _parse_decimal,
    "table": _make_json_parser(dict, 'Type a table as a JSON object, such as {"a": 1}.'),
    "list": _make_json_parser(list, "Type a list as a JSON array, such as [1, 2]."),
    "nothing": lambda text: None,
}
