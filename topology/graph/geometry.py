"""Sizes and positions in a diagram, in CSS pixels, without dot."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from topology.content.text import visible
from topology.graph.build import Node
from topology.graph.edges import Edge

Point: TypeAlias = tuple[float, float]
Direction: TypeAlias = Literal["down", "right"]

NAME_CELL = 7.3
SMALL_CELL = 6.2
NAME_CELLS = 22
LABEL_CELLS = 24
LINE_HEIGHT = 15.0
PADDING = 12.0
MINIMUM_WIDTH = 132.0
WIDTH_WITH_NUMBERS = 154.0
BREAKS = frozenset(".-_:/ ")
COLUMNS = 5
GAP, MARGIN = 16.0, 8.0
# Height above a box for a text on its upper edge.
BADGE_ROOM = 14.0


@dataclass(frozen=True)
class Box:
    """A node and its place: centre and size."""

    node: Node
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2


@dataclass(frozen=True)
class Line:
    """An edge and its way: a start, then three points for each Bézier curve, then the tip."""

    edge: Edge
    points: tuple[Point, ...]
    tip: Point
    label: str = ""
    label_at: Point = (0.0, 0.0)


@dataclass(frozen=True)
class Layout:
    """All positions. `note` is a sentence when the layout is simplified, else ""."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    note: str = ""


def cells(text: str) -> int:
    """Columns of a text in a monospaced font: two for wide signs, none for combining ones."""
    return sum(_sign_cells(sign) for sign in text)


def shorten(text: str, limit: int) -> str:
    """A text of at most `limit` columns, shortened in the middle: names differ at both ends."""
    if cells(text) <= limit:
        return text
    head = _take(text, (limit - 1) * 3 // 5)
    tail = _take(text[::-1], limit - 1 - cells(head))[::-1]
    return f"{head}…{tail}"


def name_lines(name: str) -> tuple[str, ...]:
    """A name in one line or two, broken after a separator where there is one."""
    text = visible(name)
    if cells(text) <= NAME_CELLS:
        return (text,)
    if cells(text) > 2 * NAME_CELLS:
        return _take(text, NAME_CELLS - 1) + "…", _take(text[::-1], NAME_CELLS)[::-1]
    first = _take(text, NAME_CELLS)
    breaks = [place + 1 for place, sign in enumerate(first) if sign in BREAKS]
    fitting = [place for place in breaks if cells(text[place:]) <= NAME_CELLS]
    cut = fitting[-1] if fitting else len(first)
    return text[:cut], _take(text[cut:], NAME_CELLS)


def label_of(edge: Edge) -> str:
    """The label of an arrow, shortened to fit: the first of many keys."""
    label = visible(edge.label)
    if cells(label) > LABEL_CELLS and edge.kind == "binding" and len(edge.keys) > 1:
        more = f" +{len(edge.keys) - 1}"
        return shorten(visible(edge.keys[0]), LABEL_CELLS - len(more)) + more
    return shorten(label, LABEL_CELLS)


def label_width(label: str) -> float:
    return cells(label) * SMALL_CELL + 10 if label else 0.0


def box_of(node: Node) -> Box:
    """A node measured, without a place yet."""
    lines = name_lines(node.title)
    width = max(cells(line) for line in lines) * NAME_CELL + 2 * PADDING
    height = LINE_HEIGHT * (len(lines) + 1) + PADDING + 2
    least = MINIMUM_WIDTH
    if node.kind == "exchange":
        width += 2 * PADDING
    elif not node.missing:
        height += 4
        if node.numbers is not None:
            height += 24 + 2 * LINE_HEIGHT
            least = WIDTH_WITH_NUMBERS
    widest = max((cells(visible(words)) for words in node.small), default=0)
    return Box(node, lines, 0.0, 0.0, max(width, least, widest * SMALL_CELL + 2 * PADDING), height)


def _sign_cells(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _take(text: str, limit: int) -> str:
    taken, used = [], 0
    for sign in text:
        used += _sign_cells(sign)
        if used > limit:
            break
        taken.append(sign)
    return "".join(taken)


def arrange_rows(nodes: Sequence[Node], top: float = 0.0, note: str = "") -> Layout:
    """The nodes from the left to the right, beginning below `top`."""
    measured = [box_of(node) for node in nodes]
    width = max((box.width for box in measured), default=0.0)
    boxes: list[Box] = []
    y = top + BADGE_ROOM
    for first in range(0, len(measured), COLUMNS):
        row = measured[first : first + COLUMNS]
        height = max(box.height for box in row)
        for column, box in enumerate(row):
            x = MARGIN + column * (width + GAP) + width / 2
            boxes.append(replace(box, x=x, y=y + height / 2, width=width, height=height))
        y += height + GAP
    columns = min(COLUMNS, len(measured))
    wide = 2 * MARGIN + columns * (width + GAP) - GAP
    return Layout(wide, y - GAP + MARGIN, tuple(boxes), (), note)
