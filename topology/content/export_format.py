"""Moments, JSON and CSV as every export has them; pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from topology.content.text import make_encodable

# A cell of a spreadsheet holds no more.
LONGEST_CELL = 32_000
# What a spreadsheet takes for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def format_moment(at: datetime | None) -> str | None:
    """ISO text in UTC with microseconds, ending in Z."""
    if at is None:
        return None
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def compact_json(value: Any) -> str:
    return make_encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


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
