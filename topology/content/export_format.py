"""Moments, JSON and CSV as every export has them; pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from topology.content.text import make_encodable

Item = TypeVar("Item")
# Format of an exported list -> content type of the file.
FORMS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
# Characters that a cell of a spreadsheet holds.
LONGEST_CELL = 32_000
# First characters with which a spreadsheet takes a text for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def format_moment(at: datetime | None) -> str | None:
    """ISO text in UTC with microseconds, ending in Z."""
    if at is None:
        return None
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def compact_json(value: Any) -> str:
    return make_encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def write_export(
    form: str,
    columns: Sequence[str],
    items: Iterable[Item],
    make_line: Callable[[Item], bytes],
    make_row: Callable[[Item], Iterable[Any]],
) -> Iterator[bytes]:
    """The lines of a file of one of the FORMS; a table begins with a line of names."""
    if form == "csv":
        yield csv_line(columns)
    for item in items:
        yield csv_line(make_row(item)) if form == "csv" else make_line(item)


def csv_line(cells: Iterable[Any]) -> bytes:
    """All quoted. A text that a spreadsheet would run is led by an apostrophe."""
    text = io.StringIO()
    rows = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    rows.writerow([_cell(value) for value in cells])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    value = compact_json(value) if isinstance(value, dict) else value
    if not isinstance(value, str):
        return value
    value = value if len(value) <= LONGEST_CELL else f"{value[:LONGEST_CELL]}…"
    return f"'{value}" if value.lstrip().startswith(FORMULA) or value[:1] in FORMULA else value
