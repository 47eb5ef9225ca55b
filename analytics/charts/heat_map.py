"""A map of values by weekday and hour, as squares that a template draws.

Plotly's own heat map sets style attributes, which the content security policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

CELL, GAP, LABEL = 20, 3, 34
LEVELS = 6


@dataclass(frozen=True)
class Cell:
    """`level` is from 0 (nothing) to LEVELS; `title` contains the value, `url` is its messages."""

    x: int
    y: int
    level: int
    title: str
    url: str


@dataclass(frozen=True)
class HeatMap:
    cells: Sequence[Cell]
    rows: Sequence[tuple[int, str]]
    columns: Sequence[tuple[int, str]]
    width: int
    height: int
    most: str
    """What the strongest colour means."""
    side: int = CELL - GAP


def draw(
    rows: Sequence[str],
    values: Mapping[tuple[str, int], tuple[float, str, str]],
    text: Callable[[float], str],
) -> HeatMap:
    """A square for each row and hour with a value; the greatest value has the darkest one."""
    most = max((value for value, *_ in values.values()), default=0.0)
    cells = [
        Cell(
            LABEL + hour * CELL,
            rows.index(row) * CELL,
            -int(-LEVELS * value // most) if most else 0,
            title,
            url,
        )
        for (row, hour), (value, title, url) in values.items()
    ]
    height = len(rows) * CELL
    return HeatMap(
        cells,
        [(place * CELL + CELL - GAP * 2, row) for place, row in enumerate(rows)],
        [(LABEL + hour * CELL, f"{hour:02}") for hour in range(0, 24, 6)],
        LABEL + 24 * CELL,
        height + CELL,
        text(most),
    )
