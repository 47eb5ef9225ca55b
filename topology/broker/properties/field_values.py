"""AMQP 0-9-1 field values <-> Python, tolerant when reading, exact when writing.

Tags as RabbitMQ writes them (rabbit_binary_parser.erl, 3.10.8 and 4.3.5). pika's own
decoder reads a decimal 1.5 as 1 and dies of one timestamp past the year 9999.
"""

from __future__ import annotations

import struct
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from topology.content.text import make_encodable

# Tag -> format of a value whose length depends on the tag; a decimal is scale and digits.
_FORMS = "b>b B>B s>h u>H I>i i>I l>q L>q f>f d>d t>B T>Q D>Bi"
FIXED = {one[:1].encode(): struct.Struct(one[1:]) for one in _FORMS.split()}
# Tags of values with their length in front: text, bytes, table, list.
SIZED = frozenset({b"S", b"x", b"F", b"A"})
# Most levels of tables in tables: a level costs up to four calls, and Python allows a thousand.
MAXIMUM_NESTING = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FieldError(ValueError):
    """The bytes are no AMQP field, or the value cannot be written as one."""


def read_table(data: bytes, nesting: int = 0) -> dict[str, Any]:
    """The entries of a table's inner bytes; a repeated name keeps its last value."""
    table: dict[str, Any] = {}
    position, end = 0, len(data)
    while position < end:
        named = position + 1 + data[position]
        name = data[position + 1 : named].decode("utf-8", "backslashreplace")
        first = named + 5
        if data[named : named + 1] == b"S" and nesting <= MAXIMUM_NESTING:
            # Most are texts, and a call for each takes longer than its text.
            position = first + int.from_bytes(data[named + 1 : first])
            if position > end:
                raise FieldError(f"cut off at byte {end}")
            table[name] = text(data[first:position])
        else:
            table[name], position = read_value(data, named, nesting)
    return table


def read_value(data: bytes, position: int, nesting: int = 0) -> tuple[Any, int]:
    """The value whose tag is there, and where the next begins. Raises FieldError.

    Timestamps outside of datetime's years stay whole seconds (int).
    """
    if nesting > MAXIMUM_NESTING:
        raise FieldError(f"nested more than {MAXIMUM_NESTING} deep")
    start = position + 1
    tag = data[position:start]
    if tag in SIZED:
        first = start + 4
        end = first + int.from_bytes(data[start:first])
        if end > len(data):
            raise FieldError(f"cut off at byte {len(data)}")
        return _sized_value(tag, data[first:end], nesting), end
    if tag == b"V":
        return None, start
    made = FIXED.get(tag)
    if made is None:
        if not tag:
            raise FieldError(f"cut off at byte {len(data)}")
        raise FieldError(f"unknown field type {tag!r}")
    try:
        values = made.unpack_from(data, start)
    except struct.error:
        raise FieldError(f"cut off at byte {len(data)}") from None
    end = start + made.size
    if tag == b"T":
        return moment(values[0]), end
    if tag == b"t":
        return values[0] != 0, end
    if tag == b"D":
        return Decimal(values[1]).scaleb(-values[0]), end
    return values[0], end


def _sized_value(tag: bytes, piece: bytes, nesting: int) -> Any:
    if tag == b"S":
        return text(piece)
    if tag == b"F":
        return read_table(piece, nesting + 1)
    if tag == b"x":
        return piece
    values = []
    position = 0
    while position < len(piece):
        value, position = read_value(piece, position, nesting + 1)
        values.append(value)
    return values


def text(data: bytes) -> Any:
    """Text where the bytes are UTF-8, else the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def moment(seconds: int) -> datetime | int:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return seconds


def write_table(values: Mapping[str, Any], nesting: int = 0) -> bytes:
    """A table with its length in front."""
    return _add_length(b"".join([write_entry(name, v, nesting) for name, v in values.items()]))


def write_entry(name: str, value: Any, nesting: int = 0) -> bytes:
    encoded = encode_text(name)
    if len(encoded) > 255:
        raise FieldError(f"The header name “{name[:40]}…” has more than 255 bytes.")
    return struct.pack(">B", len(encoded)) + encoded + write_value(value, nesting)


def write_value(value: Any, nesting: int = 0) -> bytes:
    """Tag and bytes of a value: int is I where it fits and l where not, str is S, bytes x."""
    if nesting > MAXIMUM_NESTING:
        raise FieldError(f"A header is nested more than {MAXIMUM_NESTING} deep.")
    match value:
        case bool():
            return b"t" + (b"\x01" if value else b"\x00")
        case int():
            return _write_integer(value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + _add_length(encode_text(value))
        case bytes():
            return b"x" + _add_length(value)
        case datetime():
            return b"T" + struct.pack(">Q", max(0, timegm(value.utctimetuple())))
        case Decimal():
            return _write_decimal(value)
        case None:
            return b"V"
        case Mapping():
            return b"F" + write_table(value, nesting + 1)
        case Sequence():
            return b"A" + _add_length(b"".join([write_value(item, nesting + 1) for item in value]))
    raise FieldError(f"A header cannot hold a {type(value).__name__}.")


def encode_text(value: str) -> bytes:
    """UTF-8. Raises FieldError on half of a surrogate pair, which JSON can hold."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            f"“{make_encodable(value[:40])}” contains an invalid Unicode character."
        ) from error


def _write_integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"I" + struct.pack(">i", value)
    if -(2**63) <= value < 2**63:
        return b"l" + struct.pack(">q", value)
    raise FieldError(f"{value} does not fit into 64 bits.")


def _write_decimal(value: Decimal) -> bytes:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -255 <= exponent <= 0:
        raise FieldError(f"{value} does not fit into an AMQP decimal.")
    unscaled = int(value.scaleb(-exponent))
    if not -(2**31) <= unscaled < 2**31:
        raise FieldError(f"{value} does not fit into an AMQP decimal.")
    return b"D" + struct.pack(">Bi", -exponent, unscaled)


def _add_length(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
