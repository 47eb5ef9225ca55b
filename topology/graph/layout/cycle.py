"""A retry loop drawn as what it is: a ring of two columns, down on the left, up on the right."""

from __future__ import annotations

from topology.graph.build import Graph, Node
from topology.graph.edges import Edge
from topology.graph.layout.geometry import Box, Layout, Line, Point, box_of, label_of, label_width

MARGIN = 8.0
ROW_GAP = 58.0
LONGEST = 8


def arrange_ring(graph: Graph) -> Layout | None:
    """The layout of a graph that is one ring of 4, 6 or 8 nodes; None for any other."""
    ring = _ring(graph)
    if not ring:
        return None
    half = len(ring) // 2
    left, right = ring[:half], ring[half:][::-1]
    widths = [max(box_of(node).width for node in column) for column in (left, right)]
    edges = {edge.source: edge for edge in graph.edges}
    across = [label_width(label_of(edges[node.id])) for node in (left[-1], right[0])]
    gap = max(48.0, *across) + 8
    centres = (MARGIN + widths[0] / 2, MARGIN + widths[0] + gap + widths[1] / 2)
    boxes: dict[str, Box] = {}
    y = MARGIN
    for pair in zip(left, right, strict=True):
        row = max(box_of(node).height for node in pair)
        for node, x in zip(pair, centres, strict=True):
            boxes[node.id] = box_of(node, x, y + row / 2)
        y += row + ROW_GAP
    lines = tuple(_straight(edge, boxes) for edge in graph.edges)
    width = 2 * MARGIN + sum(widths) + gap
    return Layout(width, y - ROW_GAP + MARGIN, tuple(boxes.values()), lines)


def _ring(graph: Graph) -> list[Node]:
    """The nodes in order, beginning where new work comes in: an exchange that no TTL feeds."""
    nodes = {node.id: node for node in graph.nodes}
    after = {edge.source: edge.target for edge in graph.edges}
    size = len(nodes)
    if size % 2 or not 4 <= size <= LONGEST or len(graph.edges) != size or len(after) != size:
        return []
    way = [_start(graph)]
    while after[way[-1]] not in way:
        way.append(after[way[-1]])
    return [nodes[node_id] for node_id in way] if len(way) == size else []


def _start(graph: Graph) -> str:
    """Where waiting messages come back to; the first id where nothing waits."""
    waiting = {node.id for node in graph.nodes if node.ttl is not None}
    returns = [e.target for e in graph.edges if e.source in waiting and e.kind == "dead-letter"]
    return min(returns or [node.id for node in graph.nodes])


def _straight(edge: Edge, boxes: dict[str, Box]) -> Line:
    source, target = boxes[edge.source], boxes[edge.target]
    label = label_of(edge)
    if abs(source.x - target.x) < 1:
        sign = 1 if target.y > source.y else -1
        start = (source.x, source.y + sign * source.height / 2)
        tip = (target.x, target.y - sign * target.height / 2)
    else:
        sign = 1 if target.x > source.x else -1
        start = (source.x + sign * source.width / 2, source.y)
        tip = (target.x - sign * target.width / 2, target.y)
    above = 11 if start[1] == tip[1] else 0
    label_at = ((start[0] + tip[0]) / 2, (start[1] + tip[1]) / 2 - above)
    return Line(edge, _almost(start, tip), tip, label, label_at)


def _almost(start: Point, tip: Point) -> tuple[Point, Point, Point, Point]:
    """A straight Bézier curve that ends a little before the tip, where the arrowhead stands."""
    near = 1 - 8 / max(abs(tip[0] - start[0]) + abs(tip[1] - start[1]), 9)
    end = (start[0] + (tip[0] - start[0]) * near, start[1] + (tip[1] - start[1]) * near)
    return start, start, end, end
