"""Where a page of rows begins, as its address says it."""

from __future__ import annotations

# More would not fit into the 64 bits of a row's number.
MOST_DIGITS = 18


def row_number(text: str) -> int | None:
    """The number of a row; None for what cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None
