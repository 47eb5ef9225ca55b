"""Pages of lists: each begins after the last row of the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)
Item = TypeVar("Item")

# Most digits of a row's number: more do not fit into 64 bits.
MOST_DIGITS = 18


def row_number(text: str) -> int | None:
    """The number of a row; None for what cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def newest_number(rows: QuerySet[Any]) -> int:
    """The number of the newest of these rows, 0 without one: a later one is new to a list."""
    return rows.order_by("-pk").values_list("pk", flat=True).first() or 0


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Rows of a list after the one with the number `after`. The next page begins after `edge`,
    None on the last.
    """

    rows: Sequence[Item]
    after: int | None
    edge: int | None


def read_page(rows: QuerySet[Row], after: str, size: int, order: str = "-pk") -> Page[Row]:
    """The page after the row that an address names by its number in the column of the order."""
    number, column = row_number(after), order.removeprefix("-")
    if number is not None:
        rows = rows.filter(**{f"{column}__{'lt' if order.startswith('-') else 'gt'}": number})
    found = list(rows.order_by(order)[: size + 1])
    edge = getattr(found[size - 1], column) if len(found) > size else None
    return Page(found[:size], number, edge)


def read_slice(rows: Sequence[Item] | QuerySet[Any, Item], after: str, size: int) -> Page[Item]:
    """The page after as many rows as an address says, of a list that is sorted by what changes."""
    first = row_number(after) or 0
    found = list(rows[first : first + size + 1])
    return Page(found[:size], first or None, first + size if len(found) > size else None)
