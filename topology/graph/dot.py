"""The layout of a diagram by Graphviz' dot. The only caller of dot.

dot gets generated ids and sizes, never a name: nothing that a queue is called can reach it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from topology.graph.build import Graph, Node
from topology.graph.edges import Edge
from topology.graph.geometry import (
    BADGE_ROOM,
    MARGIN,
    Box,
    Direction,
    Layout,
    Line,
    Point,
    arrange_rows,
    box_of,
    label_of,
    label_width,
)

POINTS_PER_INCH = 72.0
LABEL_HEIGHT = 16
FEW_NODES = 8
# Queues that dead-letter into one exchange from which on they are drawn in columns.
MANY_QUEUES = 7
COLUMNS = 4
WITHOUT_ARROWS = "The diagram omits arrows. The table lists the connections."


class LayoutError(Exception):
    """dot could not lay out the diagram; the message says why in one sentence."""


def arrange(graph: Graph, *, direction: Direction | None = None) -> Layout:
    """A layout in any case: by dot, else rows without arrows and a note.

    Without a `direction` few nodes go down, which fits a narrow screen, and many to the right.
    """
    if direction is None:
        is_small = len(graph.nodes) <= FEW_NODES or _columns(graph.nodes, graph.edges)
        direction = "down" if is_small else "right"
    try:
        return arrange_by_dot(graph, direction=direction)
    except LayoutError as error:
        return arrange_rows(graph.nodes, note=f"{error} {WITHOUT_ARROWS}")


def arrange_by_dot(
    graph: Graph, *, direction: Direction = "down", seconds: float = 3.0, program: str = "dot"
) -> Layout:
    """The layout that dot finds within `seconds`. Raises LayoutError."""
    boxes = [box_of(node) for node in graph.nodes]
    columns = _columns(graph.nodes, graph.edges)
    source = _source(boxes, graph.edges, direction, columns)
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


def _columns(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Node]:
    """The queues, shortest TTL first, of a graph in which many die into one exchange."""
    waiting = {node.id: node for node in nodes if node.ttl is not None}
    ends = {edge.target for edge in edges if edge.source in waiting}
    if len(waiting) < MANY_QUEUES or len(ends) != 1:
        return []
    return sorted(waiting.values(), key=lambda node: (node.ttl or timedelta(0), node.name))


def _source(
    boxes: list[Box], edges: tuple[Edge, ...], direction: Direction, columns: Sequence[Node]
) -> bytes:
    rankdir = "TB" if direction == "down" else "LR"
    lines = [
        "digraph {",
        f"rankdir={rankdir}; nodesep={0.08 if columns else 0.4}; ranksep=0.5;",
        'node [shape=box, fixedsize=true, label=""];',
    ]
    for number, box in enumerate(boxes):
        width, height = box.width / POINTS_PER_INCH, box.height / POINTS_PER_INCH
        lines.append(f"n{number} [width={width:.4f}, height={height:.4f}];")
    numbers = {box.node.id: number for number, box in enumerate(boxes)}
    for above, below in zip(columns, columns[COLUMNS:], strict=False):
        lines.append(f"n{numbers[above.id]} -> n{numbers[below.id]} [style=invis];")
    lines += _order_delays(boxes, edges, numbers, columns)
    # The TTL is on the boxes of columns.
    stacked = {node.id for node in columns}
    returns = _returns(boxes, edges)
    for number, edge in enumerate(edges):
        ends = f"n{numbers[edge.source]} -> n{numbers[edge.target]}"
        free = ", constraint=false" if number in returns else ""
        room = ""
        if width := 0 if edge.source in stacked else label_width(label_of(edge)):
            # An empty label of the measured size, so that dot leaves room for ours.
            size = f'fixedsize="true" width="{round(width)}" height="{LABEL_HEIGHT}"'
            table = f'<table border="0" cellborder="0" {size}><tr><td></td></tr></table>'
            room = f", label=<{table}>"
        lines.append(f"{ends} [id=e{number}{free}{room}];")
    return "\n".join([*lines, "}"]).encode()


def _order_delays(
    boxes: list[Box], edges: tuple[Edge, ...], numbers: Mapping[str, int], columns: Sequence[Node]
) -> list[str]:
    """The queues that die into one exchange beside each other, the shortest delay first; none that
    lead into one another."""
    if columns:
        return []
    waits = {box.node.id: box.node for box in boxes if box.node.ttl is not None}
    ends: dict[str, list[Node]] = {}
    for edge in edges:
        if edge.source in waits and edge.kind == "dead-letter":
            ends.setdefault(edge.target, []).append(waits[edge.source])
    lines = []
    for group in ends.values():
        ids = {node.id for node in group}
        is_apart = not any(edge.source in ids and edge.target in ids for edge in edges)
        if len(ids) > 1 and is_apart:
            ordered = sorted(group, key=lambda node: (node.ttl or timedelta(0), node.name))
            chain = " -> ".join(f"n{numbers[node.id]}" for node in dict.fromkeys(ordered))
            lines.append(f"{{rank=same; {chain} [style=invis];}}")
    return lines


def _returns(boxes: list[Box], edges: tuple[Edge, ...]) -> set[int]:
    """The edges by which what has waited comes back: they close a loop and order nothing."""
    waiting = {box.node.id for box in boxes if box.node.ttl is not None}
    leaving: dict[str, set[str]] = {box.node.id: set() for box in boxes}
    for edge in edges:
        leaving[edge.source].add(edge.target)

    def reach_from(start: str) -> set[str]:
        seen, todo = {start}, [start]
        while todo:
            fresh = leaving[todo.pop()] - seen
            seen |= fresh
            todo.extend(fresh)
        return seen

    dying = [(n, e) for n, e in enumerate(edges) if e.source in waiting and e.kind == "dead-letter"]
    return {number for number, edge in dying if edge.source in reach_from(edge.target)}


def _read(answer: Mapping[str, Any], boxes: list[Box], edges: tuple[Edge, ...]) -> Layout:
    _, _, right, top = (float(number) for number in answer["bb"].split(","))

    def place(text: str) -> Point:
        x, y = text.split(",")
        return float(x) + MARGIN, top - float(y) + BADGE_ROOM

    # A rank is an object too, without a place.
    nodes = [item for item in answer.get("objects", []) if "pos" in item]
    found = {item["name"]: place(item["pos"]) for item in nodes}
    drawn = {item["id"]: item for item in answer.get("edges", []) if "id" in item}
    placed = tuple(
        replace(box, x=found[f"n{number}"][0], y=found[f"n{number}"][1])
        for number, box in enumerate(boxes)
    )
    lines = []
    for number, edge in enumerate(edges):
        drawn_edge = drawn[f"e{number}"]
        end, *points = drawn_edge["pos"].split(" ")
        line = Line(edge, tuple(map(place, points)), place(end.removeprefix("e,")))
        if "lp" in drawn_edge:
            line = replace(line, label=label_of(edge), label_at=place(drawn_edge["lp"]))
        lines.append(line)
    return Layout(right + 2 * MARGIN, top + BADGE_ROOM + MARGIN, placed, tuple(lines))
