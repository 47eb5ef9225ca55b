"""AMQP basic properties as raw bytes: read tolerantly, edited without touching the rest.

A message goes back exactly as it came: what is not removed or replaced keeps its bytes,
its integer widths and its order. Layout: AMQP 0-9-1 §4.2.6.1, flags then values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from topology.broker.properties.field_values import (
    FieldError,
    encode_text,
    read_table,
    write_entry,
    write_table,
)
from topology.broker.properties.raw import (
    FLAGS,
    NAMES,
    WIDTHS,
    entries_of,
    set_by,
    skip_values,
)
from topology.message import COUNTED_BY_QUEUE, DOUBLED_HEADER, Properties

_PLAIN = frozenset({str, int, bool})


def read_properties(raw: bytes) -> Properties:
    """Decode for showing and deciding; never fails, what is unreadable is in `problems`."""
    try:
        return Properties(raw=raw, **_read_all(raw))
    except FieldError as error:
        problem = f"The headers are unreadable: {error}."
    try:
        pieces = _split(raw)
    except FieldError as error:
        return Properties(raw=raw, problems=(f"The properties are unreadable: {error}.",))
    pieces.pop("headers", None)
    return Properties(raw=raw, problems=(problem,), **_read_all(_join(pieces)))


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
    entries = entries_of(pieces.get("headers", b"\0\0\0\0"))
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
    # A value of these types is read as it was set.
    is_plain = all(type(v) in _PLAIN for v in (*replaced.values(), *set_properties.values()))
    if properties.problems or not is_plain:
        return read_properties(raw)
    names = {name for name, _ in kept}
    headers = {name: value for name, value in properties.headers.items() if name in names}
    changes = {**dict.fromkeys(drop), **set_properties, "headers": {**headers, **replaced}}
    return replace(properties, raw=raw, **changes)


def mark_doubled(properties: Properties) -> Properties:
    """The properties with the mark that the message may be in the broker already, without what a
    quorum queue added.

    Unchanged where the bytes cannot be taken apart.
    """
    try:
        return edit_properties(
            properties,
            drop_header=COUNTED_BY_QUEUE.__contains__,
            set_headers={DOUBLED_HEADER: "1"},
        )
    except FieldError:
        return properties


def _read_all(raw: bytes) -> dict[str, Any]:
    """The properties that are set, in one pass. Raises FieldError."""
    values: dict[str, Any] = {}
    end = 2
    for name in set_by(_flags(raw)):
        width = WIDTHS.get(name)
        if width is None:
            start = end + (4 if name == "headers" else 1)
            end = start + int.from_bytes(raw[end:start])
            piece = raw[start:end]
            values[name] = (
                read_table(piece)
                if name == "headers"
                else piece.decode("utf-8", "backslashreplace")
            )
        else:
            values[name] = int.from_bytes(raw[end : end + width])
            end += width
    if end != len(raw):
        raise FieldError(f"the properties end at byte {len(raw)}, not at {end}")
    return values


def _split(raw: bytes) -> dict[str, bytes]:
    """The bytes of each property that is set, by name and in the protocol's order."""
    pieces, end = {}, 2
    for name in set_by(_flags(raw)):
        start = end
        if name == "headers":
            end = start + 4 + int.from_bytes(raw[start : start + 4])
        else:
            end = skip_values(raw, start, (WIDTHS.get(name, 0),))
        if end > len(raw):
            raise FieldError(f"cut off at byte {len(raw)}")
        pieces[name] = raw[start:end]
    if end != len(raw):
        raise FieldError(f"{len(raw) - end} bytes too many")
    return pieces


def _flags(raw: bytes) -> int:
    if len(raw) < 2:
        raise FieldError(f"cut off at byte {len(raw)}")
    return int.from_bytes(raw[:2])


def _join(pieces: Mapping[str, bytes]) -> bytes:
    flags = sum(FLAGS[name] for name in pieces)
    return struct.pack(">H", flags) + b"".join(pieces[name] for name in NAMES if name in pieces)


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
