"""Where everything stands: Graphviz' dot where it helps. The only caller of dot.

dot gets generated ids and sizes, never a name: nothing that a queue is called can reach it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from topology.graph.build import Graph
from topology.graph.edges import Edge
from topology.graph.layout.cycle import arrange_ring
from topology.graph.layout.fan_in import arrange_star
from topology.graph.layout.geometry import (
    Box,
    Direction,
    Layout,
    Line,
    Point,
    box_of,
    label_of,
    label_width,
)
from topology.graph.layout.layers import arrange_layers

MARGIN = 8.0
# What stands on the upper edge of a box rises so far above it, with its border.
BADGE_ROOM = 13.0
POINTS_PER_INCH = 72.0
LABEL_HEIGHT = 16
FEW_NODES = 8


class LayoutError(Exception):
    """dot could not arrange the picture; the message says why in one sentence."""


def arrange(graph: Graph, *, direction: Direction | None = None, seconds: float = 3.0) -> Layout:
    """A layout in any case: a ring where it is one, else by dot, else plain rows with a note.

    Without a `direction` few nodes go down, which fits a narrow screen, and many to the right.
    """
    layout = _placed(graph, direction, seconds)
    heads = [box.top for box in layout.boxes if box.node.badge]
    return moved_down(layout, max(0.0, BADGE_ROOM - min(heads, default=BADGE_ROOM)))


def moved_down(layout: Layout, by: float) -> Layout:
    """The same with so much more room above it."""
    if not by:
        return layout

    def down(point: Point) -> Point:
        return point[0], point[1] + by

    lines = (
        replace(
            line,
            points=tuple(map(down, line.points)),
            tip=down(line.tip),
            label_at=down(line.label_at),
        )
        for line in layout.lines
    )
    boxes = (replace(box, y=box.y + by) for box in layout.boxes)
    return replace(layout, height=layout.height + by, boxes=tuple(boxes), lines=tuple(lines))


def _placed(graph: Graph, direction: Direction | None, seconds: float) -> Layout:
    known = arrange_ring(graph) or arrange_star(graph)
    if known is not None:
        return known
    if direction is None:
        direction = "down" if len(graph.nodes) <= FEW_NODES else "right"
    try:
        return arrange_by_dot(graph, direction=direction, seconds=seconds)
    except LayoutError as error:
        return arrange_layers(graph, f"Drawn without Graphviz: {error}")


def arrange_by_dot(
    graph: Graph, *, direction: Direction = "down", seconds: float = 3.0, program: str = "dot"
) -> Layout:
    """The layout that dot finds within `seconds`. Raises LayoutError."""
    boxes = [box_of(node) for node in graph.nodes]
    source = _source(boxes, graph.edges, direction)
    try:
        done = subprocess.run(
            [program, "-Tjson0"], input=source, capture_output=True, timeout=seconds, check=True
        )
        return _read(json.loads(done.stdout), boxes, graph.edges)
    except FileNotFoundError as error:
        raise LayoutError("The program “dot” of Graphviz is not installed.") from error
    except subprocess.TimeoutExpired as error:
        raise LayoutError(f"Graphviz did not finish within {seconds:g} seconds.") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise LayoutError(f"Graphviz failed: {error}.") from error
    except (KeyError, ValueError) as error:
        raise LayoutError("Graphviz returned unreadable output.") from error


def _source(boxes: list[Box], edges: tuple[Edge, ...], direction: Direction) -> bytes:
    rankdir = "TB" if direction == "down" else "LR"
    lines = [
        "digraph {",
        f"rankdir={rankdir}; nodesep=0.4; ranksep=0.5;",
        'node [shape=box, fixedsize=true, label=""];',
    ]
    for number, box in enumerate(boxes):
        width, height = box.width / POINTS_PER_INCH, box.height / POINTS_PER_INCH
        lines.append(f"n{number} [width={width:.4f}, height={height:.4f}];")
    numbers = {box.node.id: number for number, box in enumerate(boxes)}
    returns = _returns(boxes, edges)
    for number, edge in enumerate(edges):
        ends = f"n{numbers[edge.source]} -> n{numbers[edge.target]}"
        free = ", constraint=false" if number in returns else ""
        lines.append(f"{ends} [id=e{number}{free}{_room(label_width(label_of(edge)))}];")
    return "\n".join([*lines, "}"]).encode()


def _returns(boxes: list[Box], edges: tuple[Edge, ...]) -> set[int]:
    """The edges by which what has waited comes back: they close a loop and order nothing."""
    waiting = {box.node.id for box in boxes if box.node.ttl is not None}
    leaving: dict[str, set[str]] = {box.node.id: set() for box in boxes}
    for edge in edges:
        leaving[edge.source].add(edge.target)

    def reached(start: str) -> set[str]:
        seen, todo = {start}, [start]
        while todo:
            fresh = leaving[todo.pop()] - seen
            seen |= fresh
            todo.extend(fresh)
        return seen

    return {
        number
        for number, edge in enumerate(edges)
        if edge.source in waiting
        and edge.kind == "dead-letter"
        and edge.source in reached(edge.target)
    }


def _room(width: float) -> str:
    """An empty label of the measured size, so that dot leaves room for ours."""
    if not width:
        return ""
    size = f'fixedsize="true" width="{round(width)}" height="{LABEL_HEIGHT}"'
    return f', label=<<table border="0" cellborder="0" {size}><tr><td></td></tr></table>>'


def _read(answer: Mapping[str, Any], boxes: list[Box], edges: tuple[Edge, ...]) -> Layout:
    _, _, right, top = (float(number) for number in answer["bb"].split(","))

    def place(text: str) -> Point:
        x, y = text.split(",")
        return float(x) + MARGIN, top - float(y) + MARGIN

    found = {item["name"]: place(item["pos"]) for item in answer.get("objects", [])}
    ways = {item["id"]: item for item in answer.get("edges", [])}
    placed = tuple(
        replace(box, x=found[f"n{number}"][0], y=found[f"n{number}"][1])
        for number, box in enumerate(boxes)
    )
    lines = []
    for number, edge in enumerate(edges):
        way = ways[f"e{number}"]
        end, *points = way["pos"].split(" ")
        label_at = place(way["lp"]) if "lp" in way else (0.0, 0.0)
        tip = place(end.removeprefix("e,"))
        lines.append(Line(edge, tuple(map(place, points)), tip, label_of(edge), label_at))
    return Layout(right + 2 * MARGIN, top + 2 * MARGIN, placed, tuple(lines))
