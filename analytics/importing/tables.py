"""PURE: CSV of the documented fields -> lines of JSON, each at the line of its row.

RFC 4180: a header, quotes doubled within quotes. A row over several lines becomes one line,
followed by blank lines, so that a line's number is the row's in the file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from analytics.events import FIELDS, FieldType

NEEDED = ("event_id", "kind", "recorded_at")
PROBLEM_MARK = b"!"
LONGEST_CELL = 64 * 1024 * 1024
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BOOLEANS = {"true": True, "false": False}


class NoTable(ValueError):
    """The first row contains none of the required columns; the message lists them."""


def lines_of_table(text: Iterable[str]) -> Iterator[bytes]:
    """A line for every line of the file, without its end: a row, a problem or nothing.

    `text` comes line by line with the ends kept. Raises NoTable.
    """
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(text, strict=True)
    try:
        columns = next(rows, [])
    except csv.Error as error:
        raise NoTable(f"has no readable header: {error}") from error
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise NoTable(f"has no column {', '.join(missing)}")
    yield from [b""] * rows.line_num
    while True:
        begins = rows.line_num
        try:
            line = _line(columns, next(rows))
        except StopIteration:
            return
        except csv.Error as error:
            line = PROBLEM_MARK + f"The row is not readable: {error}.".encode()
        yield line
        yield from [b""] * (rows.line_num - begins - 1)


def _line(columns: Sequence[str], cells: Sequence[str]) -> bytes:
    if not cells:
        return b""
    if len(cells) != len(columns):
        return (
            PROBLEM_MARK
            + (f"The row has {len(cells)} cells, but the header has {len(columns)}.").encode()
        )
    values = {
        name: _value(FIELDS[name], cell)
        for name, cell in zip(columns, cells, strict=True)
        if name in FIELDS and (cell or FIELDS[name] == "text")
    }
    return orjson.dumps(values)


def _value(kind: FieldType, cell: str) -> Any:
    """What cannot be read stays a text, which the field then refuses."""
    if kind == "integer" and _INTEGER.fullmatch(cell):
        return int(cell)
    if kind == "boolean":
        return _BOOLEANS.get(cell.lower(), cell)
    if kind == "list of failures":
        try:
            return orjson.loads(cell)
        except orjson.JSONDecodeError:
            return cell
    return cell
