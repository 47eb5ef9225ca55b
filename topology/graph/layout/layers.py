"""A plain layout without any program: rows by the longest path, arrows between them."""

from __future__ import annotations

from itertools import pairwise

from topology.graph.build import Graph
from topology.graph.edges import Edge
from topology.graph.layout.geometry import Box, Layout, Line, box_of, label_of, label_width

MARGIN = 8.0
COLUMN_GAP = 36.0
ROW_GAP = 64.0
SIDE_STEP = 22.0


def arrange_layers(graph: Graph, note: str = "") -> Layout:
    """Every node in a row under those that lead to it; what leads back runs at the side."""
    boxes = _places(graph)
    right = max((box.left + box.width for box in boxes.values()), default=0.0)
    bottom = max((box.top + box.height for box in boxes.values()), default=0.0)
    lines = []
    for edge in graph.edges:
        if boxes[edge.target].top > boxes[edge.source].top + boxes[edge.source].height:
            lines.append(_down(edge, boxes))
        else:
            right += max(SIDE_STEP, label_width(label_of(edge)) / 2 + 6)
            lines.append(_around(edge, boxes, right))
            right += label_width(label_of(edge)) / 2
    return Layout(right + MARGIN, bottom + MARGIN, tuple(boxes.values()), tuple(lines), note)


def ranks(graph: Graph) -> dict[str, int]:
    """The row of every node: one more than the deepest that leads to it, cycles cut open."""
    forward = _without_returns(graph)
    rank = {node.id: 0 for node in graph.nodes}
    for _ in graph.nodes:
        for edge in forward:
            rank[edge.target] = max(rank[edge.target], rank[edge.source] + 1)
    used = sorted(set(rank.values()))
    return {node_id: used.index(row) for node_id, row in rank.items()}


def _without_returns(graph: Graph) -> list[Edge]:
    """The edges that do not lead back to a node still being followed (depth first)."""
    leaving: dict[str, list[Edge]] = {node.id: [] for node in graph.nodes}
    entered = {edge.target for edge in graph.edges}
    for edge in graph.edges:
        leaving[edge.source].append(edge)
    kept: list[Edge] = []
    state: dict[str, str] = {}
    for start in sorted(leaving, key=lambda node_id: (node_id in entered, node_id)):
        trail = [(start, iter(leaving[start]))] if start not in state else []
        state.setdefault(start, "open")
        while trail:
            here, rest = trail[-1]
            step = next(rest, None)
            if step is None:
                state[here] = "done"
                trail.pop()
            elif state.get(step.target) != "open":
                kept.append(step)
                if step.target not in state:
                    state[step.target] = "open"
                    trail.append((step.target, iter(leaving[step.target])))
    return kept


def _places(graph: Graph) -> dict[str, Box]:
    row_of = ranks(graph)
    rows: list[list[Box]] = [[] for _ in range(max(row_of.values(), default=-1) + 1)]
    for node in graph.nodes:
        rows[row_of[node.id]].append(box_of(node))
    widths = [sum(b.width for b in row) + COLUMN_GAP * (len(row) - 1) for row in rows]
    middle = MARGIN + max(widths, default=0.0) / 2
    places: dict[str, Box] = {}
    y = MARGIN
    for row, width in zip(rows, widths, strict=True):
        height = max(box.height for box in row)
        x = middle - width / 2
        for box in row:
            places[box.node.id] = box_of(box.node, x + box.width / 2, y + height / 2)
            x += box.width + COLUMN_GAP
        y += height + ROW_GAP
    return places


def _down(edge: Edge, boxes: dict[str, Box]) -> Line:
    source, target = boxes[edge.source], boxes[edge.target]
    start = (source.x, source.top + source.height)
    tip = (target.x, target.top)
    end = (tip[0], tip[1] - 8)
    bend = (end[1] - start[1]) / 2
    points = (start, (start[0], start[1] + bend), (end[0], end[1] - bend), end)
    return Line(edge, points, tip, label_of(edge), _middle(points[0], points[3]))


def _around(edge: Edge, boxes: dict[str, Box], x: float) -> Line:
    source, target = boxes[edge.source], boxes[edge.target]
    start = (source.left + source.width, source.y)
    tip = (target.left + target.width, target.y - (8 if source is target else 0))
    corners = [start, (x, start[1]), (x, tip[1]), (tip[0] + 8, tip[1])]
    points = [start]
    for here, there in pairwise(corners):
        points.extend([here, there, there])
    return Line(edge, tuple(points), tip, label_of(edge), (x, (start[1] + tip[1]) / 2))


def _middle(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
