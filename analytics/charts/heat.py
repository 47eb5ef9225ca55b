"""A heat map as a table of counts, of which links lead to what was counted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.content.text import count_text

LEVELS = 6
# Most columns with a number in each cell; of more a cell has no room.
MOST_WITH_TEXT = 31
THOUSAND, MILLION, TENTHS_SHOWN = 1000, 1_000_000, 100


@dataclass(frozen=True)
class Cell:
    """`level` is from 1 to LEVELS, 0 for nothing and "gap" where nobody counted; `text` is short,
    `description` is all.
    """

    text: str
    level: int | str
    url: str
    description: str
    place: str
    """What its column stands for, as the marks of other charts name it."""


@dataclass(frozen=True)
class HeatMap:
    corner: str
    heads: Sequence[tuple[str, str]]
    """The short label of each column, and what happened then."""
    rows: Sequence[tuple[str, Sequence[Cell]]]

    @property
    def is_dense(self) -> bool:
        return len(self.heads) > MOST_WITH_TEXT


Line = tuple[str, Sequence[tuple[int | None, str]]]
"""The label of a row, and of each column the number (None: a gap) and a link, "" for none."""


def heat_map(
    corner: str,
    columns: Sequence[tuple[str, str]],
    lines: Sequence[Line],
    events: Mapping[str, str],
) -> HeatMap:
    """A heat map of columns with a place and a short label; `events` by place. Levels are quantiles
    of the numbers above zero, so that one extreme cell does not make all others pale.
    """
    numbers = sorted(number for _, cells in lines for number, _ in cells if number)

    def cell(label: str, place: str, number: int | None, url: str) -> Cell:
        level: int | str = 0
        if number:
            level = 1 + LEVELS * bisect_left(numbers, number) // len(numbers)
        elif number is None:
            level = "gap"
        counted = "not counted" if number is None else count_text(number)
        description = f"{place}, {label}: {counted}"
        return Cell(_short(number), level, url, description, place)

    rows = [
        (
            label,
            [cell(label, place, *one) for (place, _), one in zip(columns, cells, strict=True)],
        )
        for label, cells in lines
    ]
    heads = [(short, events.get(place, "")) for place, short in columns]
    return HeatMap(corner, heads, rows)


def _short(number: int | None) -> str:
    """A number in few characters: 950, 1.2k, 34k; "" for none."""
    if not number:
        return ""
    for unit, name in ((MILLION, "M"), (THOUSAND, "k")):
        if number >= unit:
            tenths = number * 10 // unit
            return f"{tenths / 10:g}{name}" if tenths < TENTHS_SHOWN else f"{number // unit}{name}"
    return str(number)
