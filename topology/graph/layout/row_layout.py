"""A layout without edges: boxes of one width in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topology.graph.build import Node
from topology.graph.layout.geometry import Box, Layout, box_of

COLUMNS = 5
GAP, MARGIN = 16.0, 8.0
# A text on the upper edge of a box rises less than that above it.
BADGE_ROOM = 14.0


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
