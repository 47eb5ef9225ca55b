"""Many waiting queues that die into one exchange: a block of boxes, and one way down to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from topology.graph.build import Graph, Node
from topology.graph.edges import Edge
from topology.graph.layout.geometry import Box, Layout, Line, Point, box_of, label_of

MARGIN = 8.0
GUTTER, ROW_GAP, FALL = 30.0, 16.0, 46.0
COLUMNS = 4
FEWEST = 7
MOST_ENDS = 4
TIP = 8.0


def arrange_star(graph: Graph) -> Layout | None:
    """The layout of FEWEST or more waiting queues around one exchange; None for any other graph.

    What they wait stands on the boxes, so the ways into the exchange carry no labels.
    """
    hub = _hub(graph)
    if hub is None:
        return None
    waiting = {edge.source for edge in graph.edges if edge.target == hub.id}
    queues = sorted(
        (node for node in graph.nodes if node.id in waiting),
        key=lambda node: (node.ttl is None, node.ttl, node.name),
    )
    ends = [node for node in graph.nodes if node.id not in waiting and node is not hub]
    boxes, bottom = _block(queues)
    width = max(box.left + box.width for box in boxes.values()) + MARGIN
    foot = box_of(hub)
    boxes[hub.id] = box_of(hub, width / 2, bottom + FALL + foot.height / 2)
    y = bottom + FALL + foot.height
    if ends:
        y = _row(boxes, ends, width / 2, y + FALL)
    least = min(box.left for box in boxes.values())
    if least < MARGIN:
        boxes = {key: box_of(b.node, b.x + MARGIN - least, b.y) for key, b in boxes.items()}
    wide = max(box.left + box.width for box in boxes.values()) + MARGIN
    return Layout(
        wide,
        y + MARGIN,
        tuple(boxes.values()),
        tuple(_line(edge, boxes, hub.id, bottom) for edge in graph.edges),
    )


def _hub(graph: Graph) -> Node | None:
    """The exchange that every queue with a TTL dies into, when there is nothing else to draw."""
    nodes = {node.id: node for node in graph.nodes}
    into = Counter(edge.target for edge in graph.edges if nodes[edge.source].ttl is not None)
    if len(into) != 1:
        return None
    ((hub, count),) = into.items()
    waiting = {edge.source for edge in graph.edges if edge.target == hub}
    out = [edge for edge in graph.edges if edge.source == hub]
    is_star = (
        nodes[hub].kind == "exchange"
        and len(waiting) == count >= FEWEST
        and len(out) <= MOST_ENDS
        and count + len(out) == len(graph.edges)
        and count + len(out) + 1 == len(nodes)
        and not any(edge.target in waiting or edge.target == hub for edge in out)
    )
    return nodes[hub] if is_star else None


def _block(queues: Sequence[Node]) -> tuple[dict[str, Box], float]:
    """The boxes in rows, the shortest wait at the top left, and where the last row ends."""
    measured = [box_of(node) for node in queues]
    width = max(box.width for box in measured)
    boxes, y = {}, MARGIN
    for first in range(0, len(queues), COLUMNS):
        row = measured[first : first + COLUMNS]
        height = max(box.height for box in row)
        for column, box in enumerate(row):
            left = MARGIN + column * (width + GUTTER) + GUTTER
            boxes[box.node.id] = box_of(box.node, left + box.width / 2, y + height / 2)
        y += height + ROW_GAP
    return boxes, y - ROW_GAP


def _row(boxes: dict[str, Box], ends: Sequence[Node], centre: float, y: float) -> float:
    """Add the ends in a row around a centre; where it ends."""
    measured = [box_of(node) for node in ends]
    x = centre - (sum(box.width for box in measured) + GUTTER * (len(ends) - 1)) / 2
    for box in measured:
        boxes[box.node.id] = box_of(box.node, x + box.width / 2, y + box.height / 2)
        x += box.width + GUTTER
    return y + max(box.height for box in measured)


def _line(edge: Edge, boxes: dict[str, Box], hub: str, bottom: float) -> Line:
    source, target = boxes[edge.source], boxes[edge.target]
    tip = (target.x, target.top)
    end = (tip[0], tip[1] - TIP)
    if edge.target == hub:
        bus, turn = source.left - GUTTER / 2, bottom + FALL / 2
        way = [(source.left, source.y), (bus, source.y), (bus, turn), (target.x, turn), end]
        return Line(edge, _bends(way), tip)
    start = (source.x, source.top + source.height)
    middle = (start[1] + end[1]) / 2
    way = [start, (start[0], middle), (end[0], middle), end]
    return Line(edge, _bends(way), tip, label_of(edge), (end[0], middle))


def _bends(way: Sequence[Point]) -> tuple[Point, ...]:
    """Straight pieces as Bézier curves."""
    points = [way[0]]
    for start, end in pairwise(way):
        points += [start, end, end]
    return tuple(points)
