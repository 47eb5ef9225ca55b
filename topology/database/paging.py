"""Pages of rows by keyset: each begins after the last row of the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row")
ModelRow = TypeVar("ModelRow", bound=Model)

# More would not fit into the 64 bits of a row's number.
MOST_DIGITS = 18


def row_number(text: str) -> int | None:
    """The number of a row; None for what cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def first_page(rows: Sequence[Row], size: int) -> tuple[Sequence[Row], Row | None]:
    """The first `size` rows, and the last of them where more follow."""
    return rows[:size], rows[size - 1] if len(rows) > size else None


def newest_page(
    rows: QuerySet[ModelRow], before: int | None, size: int
) -> tuple[Sequence[ModelRow], int | None]:
    """The newest rows with a lower number than `before`, and where the next page begins."""
    older = rows if before is None else rows.filter(pk__lt=before)
    return _page(older.order_by("-pk"), size)


def oldest_page(
    rows: QuerySet[ModelRow], after: int | None, size: int
) -> tuple[Sequence[ModelRow], int | None]:
    """The oldest rows with a higher number than `after`, and where the next page begins."""
    newer = rows if after is None else rows.filter(pk__gt=after)
    return _page(newer.order_by("pk"), size)


def _page(rows: QuerySet[ModelRow], size: int) -> tuple[Sequence[ModelRow], int | None]:
    page, last = first_page(list(rows[: size + 1]), size)
    return page, last.pk if last else None
