"""The headers of a message as a person edits them: names, types, texts; pure.

What is not changed keeps its bytes; what is changed is encoded again, behind the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from delayboard.dead_letters.replay.verdicts import is_finite
from topology.broker.properties.field_values import write_entry
from topology.broker.properties.read import edit_properties, read_properties
from topology.content.text import count_text
from topology.message import DEATH_HEADERS, REPLAY_HEADER, REPLAYS_HEADER, Headers, Properties

NO_NUMBER = "RabbitMQ closes the connection at NaN and infinite numbers."
# Characters of a value that one line of a form shows.
LONG = 60
# Most bytes of headers: their frame is no longer than what a connection agrees on, 128 KiB by
# default.
MOST_BYTES = 120_000
_BROKER_S = DEATH_HEADERS | {"CC", "BCC"}
_OURS = {
    REPLAY_HEADER: "which replay sent the message",
    REPLAYS_HEADER: "how often the message was replayed",
}


class EditError(ValueError):
    """Nothing was changed. `problems` maps a header, or "body", to a sentence; "" is the whole."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


class Typed(NamedTuple):
    """A value as a text of one of TYPES; the type "" is the one that the header has."""

    type: str
    text: str


def read_headers(raw: bytes) -> tuple[HeaderRow, ...]:
    """The headers in their order. Raises EditError when they cannot be taken apart."""
    headers = _read(raw).headers
    return tuple(
        row._replace(lock=_explain_lock(raw, row.name, headers[row.name]))
        for row in make_header_rows(headers)
    )


def edit_headers(
    raw: bytes, set_headers: Mapping[str, Typed], drop_headers: Collection[str] = ()
) -> bytes:
    """The properties' bytes with these headers set and those dropped. Raises EditError."""
    properties = _read(raw)
    problems = {name: lock for name in drop_headers if (lock := explain_lock(name))}
    changed: dict[str, Any] = {}
    for name, typed in set_headers.items():
        try:
            if _is_changed(properties.headers, name, typed):
                changed[name] = _parse(raw, properties.headers, name, typed)
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        raise EditError(problems)
    dropped = set(drop_headers) - set(set_headers)
    found = edit_properties(properties, set_headers=changed, drop_header=dropped.__contains__).raw
    if len(found) > max(MOST_BYTES, len(raw)):
        raise EditError(
            {"": f"All headers together can have {count_text(MOST_BYTES)} bytes at most."}
        )
    return found


def explain_lock(name: str) -> str:
    """Why nobody edits a header of this name; "" when it may be."""
    if name in _BROKER_S or name.startswith("x-opt-"):
        return "RabbitMQ sets this header, and every replay removes it."
    if name in _OURS:
        return f"Delayboard writes it at every replay: it records {_OURS[name]}."
    return ""


def _explain_lock(raw: bytes, name: str, value: Any) -> str:
    if why := explain_lock(name):
        return why
    if name.encode("utf-8", "replace") not in raw:
        return "Its name is not valid UTF-8."
    if isinstance(value, (Mapping, list)) and not _is_plain(value):
        return "This form cannot edit times, decimals or bytes in a table or list."
    return ""


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent the value completely."""
    match value:
        case Mapping():
            return all(_is_plain(item) for item in value.values())
        case list():
            return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, bool, int, float))


def _is_changed(headers: Headers, name: str, typed: Typed) -> bool:
    if name not in headers:
        return True
    kind = name_type(headers[name])
    return typed.type not in ("", kind) or typed.text != format_value(headers[name])


def _parse(raw: bytes, headers: Headers, name: str, typed: Typed) -> Any:
    """The value to be set. Raises ValueError with a sentence."""
    if not name and name not in headers:
        raise ValueError("A header needs a name.")
    lock = _explain_lock(raw, name, headers[name]) if name in headers else explain_lock(name)
    if lock:
        raise ValueError(lock)
    kind = typed.type or (name_type(headers[name]) if name in headers else "")
    if kind not in TYPES:
        raise ValueError(f"Its type is one of {', '.join(TYPES)}.")
    value = TYPES[kind](typed.text)
    write_entry(name, value)
    return value


def _read(raw: bytes) -> Properties:
    """Raises EditError."""
    properties = read_properties(raw)
    if properties.problems:
        sentence = (
            "Delayboard cannot read the properties of this message, so nothing can be edited: "
            f"{' '.join(properties.problems)}"
        )
        raise EditError({"": sentence})
    return properties


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
    """The time from a date and time in UTC, or from whole seconds since 1970."""
    sentence = text.strip()
    try:
        if sentence.isascii() and sentence.isdigit():
            return datetime.fromtimestamp(int(sentence[:20]), UTC)
        at = datetime.fromisoformat(sentence.removesuffix("UTC").strip())
        # In UTC it may be out of range.
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError("Type a time in UTC, such as 2026-11-22 03:00:00.") from None
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


# Type -> how its text is read. Each raises ValueError with a sentence.
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
