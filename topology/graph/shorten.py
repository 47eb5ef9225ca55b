"""A graph without the exchanges that only hand a message on: a chain of them becomes an arrow."""

from __future__ import annotations

from topology.content.text import count_of
from topology.graph.build import Graph
from topology.graph.edges import Edge


def shorten(graph: Graph) -> Graph:
    """Draw one arrow instead of two where an exchange has one arrow in and one binding out."""
    edges, over = set(graph.edges), dict[Edge, int]()
    for node in graph.nodes:
        coming = [edge for edge in edges if edge.target == node.id]
        going = [edge for edge in edges if edge.source == node.id]
        if node.kind != "exchange" or len(coming) != 1 or len(going) != 1:
            continue
        (first,), (second,) = coming, going
        if second.kind != "binding" or first.source == second.target:
            continue
        number = over.pop(first, 0) + over.pop(second, 0) + 1
        joined = _join_edges(first, second, number)
        edges = (edges - {first, second}) | {joined}
        over[joined] = number
    ends = {end for edge in edges for end in (edge.source, edge.target)}
    alone = {node.id for node in graph.nodes} - {
        end for edge in graph.edges for end in (edge.source, edge.target)
    }
    kept = tuple(node for node in graph.nodes if node.id in ends | alone)
    order = sorted(edges, key=lambda edge: (edge.source, edge.target, edge.kind))
    return Graph(kept, tuple(order))


def _join_edges(first: Edge, second: Edge, number: int) -> Edge:
    through = f"over {count_of(number, 'exchange')}"
    if first.kind == "binding":
        return Edge(first.source, second.target, "binding", f"leads {through} to", (), through)
    # The label of the arrow is short; the table lists the bindings.
    when = first.label
    what = f"{first.what.partition(', over ')[0]}, {through}"
    return Edge(first.source, second.target, first.kind, what, first.keys, when)
