"""AMQP basic properties as raw bytes, taken apart without a look into any value.

Layout: AMQP 0-9-1 §4.2.6.1, flags then values; of a table §4.2.5.5, names, tags and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from topology.broker.properties.field_values import FIXED, SIZED, FieldError
from topology.message import DEATH_HEADERS

NAMES = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority"),
    *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type"),
    *("user_id", "app_id", "cluster_id"),
)
FLAGS = {name: 1 << (15 - place) for place, name in enumerate(NAMES)}
# Length in bytes of a value; except these and the headers, values are short strings.
WIDTHS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_EXCLUDED = DEATH_HEADERS | {"CC", "BCC"}
# Tag -> bytes of a field's value; values of other tags have their length in front.
_SIZES = {tag: form.size for tag, form in FIXED.items()} | {b"V": 0}


def skip_values(raw: bytes, position: int, sizes: Sequence[int]) -> int:
    """The position after these values; a size of 0 means a short string with its own length."""
    try:
        for size in sizes:
            position += size or 1 + raw[position]
    except IndexError:
        raise FieldError(f"cut off at byte {len(raw)}") from None
    return position


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
