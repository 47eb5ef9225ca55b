"""AMQP basic properties as raw bytes: read tolerantly, edited without touching the rest.

A message goes back exactly as it came: what is not removed or replaced keeps its bytes,
its integer widths and its order. Layout: AMQP 0-9-1 §4.2.6.1, flags then values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from topology.broker.fields import (
    FieldError,
    Reader,
    encode_text,
    read_table,
    text,
    write_entry,
    write_table,
)
from topology.message import DEATH_HEADERS, Properties

_NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
# All but these are short texts.
_OTHERS = frozenset({"headers", "delivery_mode", "priority", "timestamp"})
_USER_ID = frozenset({"user_id"})
_LEFT_OUT = DEATH_HEADERS | {"CC", "BCC"}
_PLAIN = frozenset({str, int, bool})
# The bytes of a field's value by its tag; those of the others have their length in front.
_SIZES = {
    **dict.fromkeys((b"t", b"b", b"B"), 1),
    **dict.fromkeys((b"s", b"u"), 2),
    **dict.fromkeys((b"I", b"i", b"f"), 4),
    b"D": 5,
    **dict.fromkeys((b"l", b"L", b"d", b"T"), 8),
    b"V": 0,
}
_SIZED = frozenset({b"S", b"x", b"F", b"A"})
_FLAGS = {name: 1 << (15 - place) for place, name in enumerate(_NAMES)}


def read_properties(raw: bytes) -> Properties:
    """Decode for showing and deciding; never fails, what is unreadable is in `problems`."""
    try:
        return Properties(raw=raw, **_read_all(raw))
    except FieldError:
        return _read_what_can_be_read(raw)


def build_properties(headers: Mapping[str, Any] | None = None, **stated: Any) -> Properties:
    """Properties to publish with. Raises FieldError for what AMQP cannot carry."""
    pieces: dict[str, bytes] = {}
    for name, value in stated.items():
        if value is not None and value != "":
            pieces[name] = _write(name, value)
    if headers:
        pieces["headers"] = write_table(headers)
    return read_properties(_join(pieces))


def edit_properties(
    properties: Properties,
    *,
    drop_header: Callable[[str], bool] = lambda name: False,
    set_headers: Mapping[str, Any] | None = None,
    drop: frozenset[str] = frozenset(),
    stated: Mapping[str, Any] | None = None,
) -> Properties:
    """Drop and set headers, drop and set whole properties; every other byte stays as it is.

    Raises FieldError when the raw bytes cannot be taken apart, so that nothing is edited
    half.
    """
    pieces = {name: data for name, data in _split(properties.raw).items() if name not in drop}
    set_properties = dict(stated or {})
    pieces.update({name: _write(name, value) for name, value in set_properties.items()})
    replaced = dict(set_headers or {})
    entries = _entries(pieces.get("headers", b"\0\0\0\0"))
    kept = [
        (name, data) for name, data in entries if name not in replaced and not drop_header(name)
    ]
    if replaced or len(kept) < len(entries):
        inner = b"".join([data for _, data in kept])
        inner += b"".join([write_entry(*pair) for pair in replaced.items()])
        pieces.pop("headers", None)
        if inner:
            pieces["headers"] = struct.pack(">I", len(inner)) + inner
    raw = _join(pieces)
    if properties.problems or not _reads_as_written(replaced, set_properties):
        return read_properties(raw)
    names = {name for name, _ in kept}
    headers = {name: value for name, value in properties.headers.items() if name in names}
    changes = {**dict.fromkeys(drop), **set_properties, "headers": {**headers, **replaced}}
    return replace(properties, raw=raw, **changes)


def strip_for_replay(
    properties: Properties, set_headers: Mapping[str, Any], *, expiration: str = ""
) -> Properties:
    """Without what dying added, the routing copies and a foreign user id; with our headers, and
    with another expiration if one is given.

    x-death is interpreted again by brokers before 4.0 and would count into their cycle rule;
    a foreign user_id closes the channel with 406 (rabbit_dead_letter.erl 3.10.8).
    """
    return edit_properties(
        properties,
        drop_header=_is_dying_or_copies,
        set_headers=set_headers,
        drop=_USER_ID,
        stated={"expiration": expiration} if expiration else None,
    )


def _is_dying_or_copies(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith("x-opt-")


def _reads_as_written(*values: Mapping[str, Any]) -> bool:
    """Whether these are read as they were set, so that they need not be read."""
    return all(type(value) in _PLAIN for one in values for value in one.values())


def _entries(headers: bytes) -> list[tuple[str, bytes]]:
    """The names in a table with its length in front, each with all bytes of its entry.

    What is in an entry is not looked at: it stays as it is, or goes whole.
    """
    entries = []
    position, end = 4, len(headers)
    while position < end:
        named = position + 1 + headers[position]
        tag = headers[named : named + 1]
        size = _SIZES.get(tag)
        if size is None:
            if tag not in _SIZED or named + 5 > end:
                raise FieldError(f"unknown field type {tag!r}" if tag else f"cut off at byte {end}")
            size = 4 + int.from_bytes(headers[named + 1 : named + 5])
        after = named + 1 + size
        if after > end:
            raise FieldError(f"cut off at byte {end}")
        entries.append((_name(headers[position + 1 : named]), headers[position:after]))
        position = after
    return entries


def _read_all(raw: bytes) -> dict[str, Any]:
    """The properties that are set, in one pass. Raises FieldError."""
    values: dict[str, Any] = {}
    reader = Reader(raw)
    for name in _set_by(reader.number(">H")):
        if name in _OTHERS:
            values[name] = _read(name, reader)
            continue
        start = reader.position + 1
        end = start + int.from_bytes(raw[start - 1 : start])
        values[name] = raw[start:end].decode("utf-8", "backslashreplace")
        reader.position = end
    if reader.position != len(raw):
        raise FieldError(f"the properties end at byte {len(raw)}, not at {reader.position}")
    return values


def _read_what_can_be_read(raw: bytes) -> Properties:
    values: dict[str, Any] = {}
    problems: list[str] = []
    try:
        pieces = _split(raw)
    except FieldError as error:
        return Properties(raw=raw, problems=(f"The properties are unreadable: {error}.",))
    for name, piece in pieces.items():
        try:
            values[name] = _read(name, Reader(piece))
        except FieldError as error:
            problems.append(f"{name} is unreadable: {error}.")
    return Properties(raw=raw, problems=tuple(problems), **values)


@cache
def _set_by(flags: int) -> tuple[str, ...]:
    """The names that the flags set, in the protocol's order. Raises FieldError."""
    if flags & 3:
        raise FieldError("property flags that AMQP 0-9-1 does not have")
    return tuple(name for name, flag in _FLAGS.items() if flags & flag)


def _split(raw: bytes) -> dict[str, bytes]:
    """The bytes of each property that is set, by name and in the protocol's order."""
    reader = Reader(raw)
    pieces = {}
    for name in _set_by(reader.number(">H")):
        start = reader.position
        _skip(reader, name)
        pieces[name] = raw[start : reader.position]
    if reader.position != len(raw):
        raise FieldError(f"{len(raw) - reader.position} bytes too many")
    return pieces


def _join(pieces: Mapping[str, bytes]) -> bytes:
    flags = sum(_FLAGS[name] for name in pieces)
    return struct.pack(">H", flags) + b"".join(pieces[name] for name in _NAMES if name in pieces)


def _skip(reader: Reader, name: str) -> None:
    if name == "headers":
        reader.long_string()
    elif name in ("delivery_mode", "priority"):
        reader.take(1)
    elif name == "timestamp":
        reader.take(8)
    else:
        reader.short_string()


def _read(name: str, reader: Reader) -> Any:
    if name == "headers":
        return read_table(reader.long_string())
    if name in ("delivery_mode", "priority"):
        return reader.number(">B")
    if name == "timestamp":
        return reader.number(">Q")
    value = text(reader.short_string())
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _write(name: str, value: Any) -> bytes:
    if name in ("delivery_mode", "priority"):
        if not 0 <= value <= 255:
            raise FieldError(f"{name.replace('_', ' ')} must be between 0 and 255.")
        return struct.pack(">B", value)
    if name == "timestamp":
        if not 0 <= value < 2**64:
            raise FieldError("timestamp must be seconds since 1970, at most 64 bits of them.")
        return struct.pack(">Q", value)
    encoded = encode_text(str(value))
    if len(encoded) > 255:
        raise FieldError(f"{name.replace('_', ' ')} has more than 255 bytes.")
    return struct.pack(">B", len(encoded)) + encoded


def _name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
