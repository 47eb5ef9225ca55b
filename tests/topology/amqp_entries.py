"""The bytes of an AMQP table taken apart, to compare what was published with what came."""

from __future__ import annotations

import struct
from typing import Any

from topology.broker.properties import field_values
from topology.broker.properties.field_values import FieldError


class Reader:
    """A cursor over bytes; every read raises FieldError rather than run past the end."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise FieldError(f"cut off at byte {len(self.data)}")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def short_string(self) -> bytes:
        return self.take(self.number(">B"))

    def long_string(self) -> bytes:
        return self.take(self.number(">I"))


def read_value(reader: Reader) -> Any:
    value, reader.position = field_values.read_value(reader.data, reader.position)
    return value


def table_entries(data: bytes) -> list[tuple[bytes, Any, bytes]]:
    """Name, value and the untouched bytes of each entry of a table, in its order."""
    reader = Reader(data)
    entries = []
    while reader.position < len(data):
        start = reader.position
        name = reader.short_string()
        value = read_value(reader)
        entries.append((name, value, data[start : reader.position]))
    return entries
