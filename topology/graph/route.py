"""A route in a diagram: its steps, where it breaks, one arrow over what only hands a message on."""

from __future__ import annotations

from collections.abc import Iterable

from topology.content.text import count_of
from topology.definitions import Definitions, Identity
from topology.delays import format_delay
from topology.graph.build import Graph
from topology.graph.edges import Edge
from topology.routing.outcome import RouteOutcome, Walk

LOST, STUCK, WRONG = "lost here", "stuck here", "problem here"


def route_steps(walked: Walk) -> dict[str, str]:
    """Queue ids -> their number on the route and when the message first comes there."""
    steps: dict[str, str] = {}
    for number, hop in enumerate(sorted(walked.hops, key=lambda hop: hop.after), start=1):
        when = f"after {format_delay(hop.after)}" if hop.after else "at once"
        steps.setdefault(f"queue/{hop.queue}", f"{number}: {when}")
    return steps


def broken_places(
    walked: Walk, there: Definitions, objects: Iterable[Identity] = ()
) -> dict[str, str]:
    """Node ids -> what happens to a message there.

    Where no copy is lost or stuck, they are those of a finding's `objects`.
    """
    found = {}
    for outcome in walked.outcomes:
        if outcome.ending == "stuck":
            found[f"queue/{outcome.queue}"] = STUCK
        elif outcome.ending == "dropped" and outcome.hops:
            found[_place(outcome, there)] = LOST
    return found or dict.fromkeys(map(_node, objects), WRONG)


def _place(outcome: RouteOutcome, there: Definitions) -> str:
    """The exchange that has no queue for the message, else the queue where it ends."""
    name = outcome.hops[-1].queue
    queue = there.queue(name)
    exchange = queue.dead_letter_exchange if queue else None
    if exchange is None or outcome.cause != "no_route":
        return f"queue/{name}"
    return f"exchange/{exchange}"


def _node(identity: Identity) -> str:
    """A binding is marked at its destination."""
    kind, name = identity[2:4] if identity[0] == "binding" else identity[:2]
    return f"{kind}/{name}"


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
        through = f"over {count_of(number, 'exchange')}"
        # The label of the arrow is short; the table lists the bindings.
        what, keys = f"{first.what.partition(', over ')[0]}, {through}", first.keys
        label = first.label
        if first.kind == "binding":
            what, keys, label = f"leads {through} to", (), through
        joined = Edge(first.source, second.target, first.kind, what, keys, label)
        edges = (edges - {first, second}) | {joined}
        over[joined] = number
    ends = {end for edge in edges for end in (edge.source, edge.target)}
    linked = {end for edge in graph.edges for end in (edge.source, edge.target)}
    kept = tuple(node for node in graph.nodes if node.id in ends or node.id not in linked)
    order = sorted(edges, key=lambda edge: (edge.source, edge.target, edge.kind))
    return Graph(kept, tuple(order))
