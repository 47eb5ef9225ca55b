"""AMQP basic properties as raw bytes, taken apart without a look into any value.

Layout: AMQP 0-9-1 §4.2.6.1, flags then values; of a table §4.2.5.5, names, tags and values.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from topology.broker.properties.field_values import FIXED, SIZED, FieldError
from topology.message import DEATH_HEADERS

NAMES = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority"),
    *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type"),
    *("user_id", "app_id", "cluster_id"),
)
FLAGS = {name: 1 << (15 - place) for place, name in enumerate(NAMES)}
_FLAGS_FORM = struct.Struct(">H")
_HEADERS, _USER = FLAGS["headers"], FLAGS["user_id"]
# Length in bytes of a value; all others except the headers are short strings with own length.
WIDTHS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_EXCLUDED = DEATH_HEADERS | {"CC", "BCC"}
_EXCLUDED_RAW = frozenset(name.encode() for name in _EXCLUDED)
# The bytes of a field's value by its tag; those of the others have their length in front.
_SIZES = {tag: form.size for tag, form in FIXED.items()} | {b"V": 0}


class Stripped(NamedTuple):
    """Raw properties without what a replay takes off, and apart; `replaced` is its last entry of
    each name that shall be set again. Flags, and the values before and behind the headers.
    """

    flags: int
    front: bytes
    kept: bytes
    behind: bytes
    replaced: Mapping[bytes, bytes]

    def with_entries(self, entries: bytes) -> bytes:
        """Put together again with these entries at the end of the headers."""
        inner = self.kept + entries
        if not inner and not self.flags & _HEADERS:
            return _FLAGS_FORM.pack(self.flags) + self.front + self.behind
        head = _FLAGS_FORM.pack(self.flags | _HEADERS)
        return b"".join((head, self.front, len(inner).to_bytes(4), inner, self.behind))


def strip_raw(raw: bytes, replaced: Collection[bytes]) -> Stripped:
    """What `strip_for_replay` does, for very many messages: nothing is decoded.

    `replaced` are the names of headers that will be set, in ASCII. Raises FieldError.
    """
    if len(raw) < 2:
        raise FieldError(f"cut off at byte {len(raw)}")
    (flags,) = _FLAGS_FORM.unpack_from(raw)
    before, after = _sizes_by(flags)
    start = skip_values(raw, 2, before)
    inner = end = start
    if flags & _HEADERS:
        inner = start + 4
        end = inner + int.from_bytes(raw[start:inner])
    last = skip_values(raw, end, after)
    if last != len(raw):
        raise FieldError(f"the properties end at byte {len(raw)}, not at {last}")
    kept, taken = _sift(raw, inner, end, replaced)
    behind = raw[end:]
    if flags & _USER:
        at = skip_values(raw, end, _sizes_by(flags, _USER)[1])
        behind = raw[end:at] + raw[at + 1 + raw[at] :]
        flags &= ~_USER
    if end > inner and not kept:
        flags &= ~_HEADERS
    return Stripped(flags, raw[2:start], kept, behind, taken)


def skip_values(raw: bytes, position: int, sizes: Sequence[int]) -> int:
    """The position after these values; a size of 0 means a short string with its own length."""
    try:
        for size in sizes:
            position += size or 1 + raw[position]
    except IndexError:
        raise FieldError(f"cut off at byte {len(raw)}") from None
    return position


@cache
def _sizes_by(flags: int, until: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of the values before and behind the headers; of those before the flag `until`.

    Raises FieldError.
    """
    names = [name for name in set_by(flags) if FLAGS[name] > until]
    before = [WIDTHS.get(name, 0) for name in names if FLAGS[name] > _HEADERS]
    behind = [WIDTHS.get(name, 0) for name in names if FLAGS[name] < _HEADERS]
    return tuple(before), tuple(behind)


def _sift(
    data: bytes, position: int, end: int, replaced: Collection[bytes]
) -> tuple[bytes, dict[bytes, bytes]]:
    """The entries there without those that dying added, and those that are replaced, by name."""
    if end > len(data):
        raise FieldError(f"cut off at byte {len(data)}")
    kept: list[bytes] = []
    taken: dict[bytes, bytes] = {}
    while position < end:
        named = position + 1 + data[position]
        after = _find_end(data, named, end)
        name = data[position + 1 : named]
        if name in replaced:
            taken[name] = data[position:after]
        elif name not in _EXCLUDED_RAW and not name.startswith(b"x-opt-"):
            kept.append(data[position:after])
        position = after
    return b"".join(kept), taken


def _find_end(data: bytes, named: int, end: int) -> int:
    """Where the value ends whose tag is there, which is not looked into."""
    tag = data[named : named + 1] if named < end else b""
    size = _SIZES.get(tag)
    if size is None:
        if tag not in SIZED or named + 5 > end:
            raise FieldError(f"unknown field type {tag!r}" if tag else f"cut off at byte {end}")
        size = 4 + int.from_bytes(data[named + 1 : named + 5])
    after = named + 1 + size
    if after > end:
        raise FieldError(f"cut off at byte {end}")
    return after


def is_excluded(name: str) -> bool:
    """Whether a replay takes this header off: dying added it, or it makes copies."""
    return name in _EXCLUDED or name.startswith("x-opt-")


@cache
def set_by(flags: int) -> tuple[str, ...]:
    """The names that the flags set, in the protocol's order. Raises FieldError."""
    if flags & 3:
        raise FieldError("property flags that AMQP 0-9-1 does not have")
    return tuple(name for name, flag in FLAGS.items() if flags & flag)


def entries_of(headers: bytes) -> list[tuple[str, bytes]]:
    """The names in a table with its length in front, each with all bytes of its entry.

    What is in an entry is not looked at: it stays as it is, or goes whole.
    """
    entries = []
    position, end = 4, len(headers)
    while position < end:
        named = position + 1 + headers[position]
        after = _find_end(headers, named, end)
        name = headers[position + 1 : named].decode("utf-8", "backslashreplace")
        entries.append((name, headers[position:after]))
        position = after
    return entries
