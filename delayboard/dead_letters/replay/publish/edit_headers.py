"""The headers of a message as a person edits them: names, types, texts; pure.

What is not changed keeps its bytes and its place; what is changed is encoded again as its type.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from delayboard.dead_letters.replay.publish.header_values import (
    NAMES,
    TYPES,
    format_value,
)
from topology.broker.properties.field_values import (
    FieldError,
    Reader,
    table_entries,
    write_entry,
    write_value,
)
from topology.message import DEATH_HEADERS, REPLAY_HEADER, REPLAYS_HEADER

# A header frame is no longer than what a connection agrees on, 128 KiB by default.
MOST_BYTES = 120_000
HEADERS_FLAG = 1 << 13
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


class Header(NamedTuple):
    """`lock` says why it cannot be changed, "" when it can."""

    name: str
    type: str
    text: str
    lock: str = ""


class _Entry(NamedTuple):
    name: str
    tag: bytes
    value: Any
    data: bytes


def read_headers(raw: bytes) -> tuple[Header, ...]:
    """The headers in their order. Raises EditError when they cannot be taken apart."""
    return tuple(
        Header(entry.name, _name_type(entry), format_value(entry.value), _explain_lock(entry))
        for entry in _read_entries(raw)
    )


def edit_headers(
    raw: bytes, set_headers: Mapping[str, Typed], drop_headers: Collection[str] = ()
) -> bytes:
    """The properties' bytes with these headers set and those dropped. Raises EditError."""
    entries = _read_entries(raw)
    known = {entry.name: entry for entry in entries}
    problems: dict[str, str] = {}
    written: dict[str, bytes] = {}
    for name in (*set_headers, *drop_headers):
        entry = known.get(name)
        if lock := explain_lock(name) or (
            _explain_lock(entry) if entry and name in set_headers else ""
        ):
            problems[name] = lock
    for name, typed in set_headers.items():
        try:
            if name not in problems:
                written[name] = _write_entry(name, typed, known.get(name))
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        raise EditError(problems)
    dropped = set(drop_headers) - set(set_headers)
    kept = [
        written.pop(entry.name, b"") if entry.name in set_headers else entry.data
        for entry in entries
        if entry.name not in dropped
    ]
    inner = b"".join([*kept, *written.values()])
    if inner == b"".join([entry.data for entry in entries]):
        return raw
    found = _replace_table(raw, inner)
    if len(found) > max(MOST_BYTES, len(raw)):
        raise EditError({"": f"All headers together can have {MOST_BYTES:,} bytes at most."})
    return found


def explain_lock(name: str) -> str:
    """Why nobody edits a header of this name; "" when it may be."""
    if name in _BROKER_S or name.startswith("x-opt-"):
        return "RabbitMQ sets this header, and every replay removes it."
    if name in _OURS:
        return f"Delayboard writes it at every replay: it records {_OURS[name]}."
    return ""


def _explain_lock(entry: _Entry) -> str:
    if why := explain_lock(entry.name):
        return why
    if isinstance(entry.value, (Mapping, list)) and not _is_plain(entry.value):
        return "It holds values that cannot be typed, such as times, decimals or bytes."
    return ""


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent the value completely."""
    match value:
        case Mapping():
            return all(_is_plain(item) for item in value.values())
        case list():
            return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, bool, int, float))


def _name_type(entry: _Entry) -> str:
    return "bytes" if isinstance(entry.value, bytes) else NAMES.get(entry.tag, "text")


def _write_entry(name: str, typed: Typed, old: _Entry | None) -> bytes:
    """The whole entry. Raises ValueError with a sentence."""
    if not name and old is None:
        raise ValueError("A header needs a name.")
    kind = typed.type or ("" if old is None else _name_type(old))
    if old is not None and kind == _name_type(old) and typed.text == format_value(old.value):
        return old.data
    if kind not in TYPES:
        raise ValueError(f"Its type is one of {', '.join(TYPES)}.")
    value = TYPES[kind](typed.text)
    # A name that is no UTF-8 keeps its bytes.
    return (
        write_entry(name, value)
        if old is None
        else old.data[: 1 + old.data[0]] + write_value(value)
    )


def _read_entries(raw: bytes) -> Sequence[_Entry]:
    """Raises EditError."""
    try:
        start, size = _find_table(raw)
        return [
            _Entry(
                name.decode("utf-8", "backslashreplace"),
                data[1 + len(name) : 2 + len(name)],
                value,
                data,
            )
            for name, value, data in table_entries(raw[start + 4 : start + size])
        ]
    except FieldError as error:
        sentence = (
            "Delayboard cannot read the properties of this message, so nothing can be edited: "
            f"{error}."
        )
        raise EditError({"": sentence}) from error


def _find_table(raw: bytes) -> tuple[int, int]:
    """Where the table of headers begins, and how many bytes it has; none where there is none."""
    reader = Reader(raw)
    flags = reader.number(">H")
    for place in (15, 14):
        if flags & 1 << place:
            reader.short_string()
    start = reader.position
    if flags & HEADERS_FLAG:
        reader.long_string()
    return start, reader.position - start


def _replace_table(raw: bytes, inner: bytes) -> bytes:
    """The same properties with this table; without one where it is empty."""
    start, size = _find_table(raw)
    (flags,) = struct.unpack_from(">H", raw)
    flags = flags | HEADERS_FLAG if inner else flags & ~HEADERS_FLAG
    table = struct.pack(">I", len(inner)) + inner if inner else b""
    return struct.pack(">H", flags) + raw[2:start] + table + raw[start + size :]
