"""The diagram of a message's path according to x-death; pure, without requests to a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from topology.content.text import visible
from topology.deaths import Death, History, newest_death
from topology.graph.build import Graph, Node
from topology.graph.dot import arrange
from topology.graph.edges import Edge
from topology.graph.svg import draw
from topology.message import Message

MOST_DEATHS = 40


def path_diagram(message: Message, history: History, queue: str) -> str:
    """An SVG in which every name is escaped; "" for a message that has never died."""
    if not _draw(history.deaths):
        return ""
    layout = arrange(path_graph(message, history, queue))
    return draw(layout, title="Path of this message", description="", id="path")


def path_graph(message: Message, history: History, queue: str) -> Graph:
    """Its queues in the order of their first deaths, and the exchanges between them.

    An arrow is marked as inferred when only the order or the counts support it.
    """
    deaths = _draw(history.deaths)
    edges: dict[tuple[str, str], Edge] = {}
    before = ""
    for death in deaths:
        _add_death(edges, before, death, is_sure=not death.order_is_inferred)
        before = f"queue/{death.queue}"
    # The first of the queues in which it died more than once: there a round begins.
    for death in [death for death in deaths if death.count > 1][:1]:
        _add_death(edges, before, death, is_sure=False)
    if queue:
        _last(edges, message, history, before, queue)
    return _graph(deaths, edges.values(), queue)


def _draw(deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """Those with a name to draw, or both ends of what nobody could look at."""
    half = MOST_DEATHS // 2
    deaths = tuple(death for death in deaths if death.queue)
    return deaths if len(deaths) <= MOST_DEATHS else deaths[:half] + deaths[-half:]


def _add_death(
    edges: dict[tuple[str, str], Edge], before: str, death: Death, *, is_sure: bool
) -> None:
    """From the queue before through the exchange to the queue of this death."""
    kind: Literal["dead-letter", "alternate"] = "dead-letter" if is_sure else "alternate"
    what = "dead-letters to" if is_sure else "dead-letters to (inferred)"
    queue = f"queue/{death.queue}"
    key = death.routing_key
    if death.exchange:
        exchange = f"exchange/{death.exchange}"
        if before:
            _add(edges, Edge(before, exchange, kind, what))
        _add(edges, Edge(exchange, queue, "binding", "routes to", (key,), key))
    elif before:
        _add(edges, Edge(before, queue, kind, what, (key,), key))


def _last(
    edges: dict[tuple[str, str], Edge], message: Message, history: History, before: str, queue: str
) -> None:
    """The edge from its latest death to its queue, according to the delivery."""
    newest = newest_death(message.headers)
    known = {f"queue/{death.queue}" for death in history.deaths}
    last = f"queue/{newest[0]}" if newest else ""
    start = last if last in known else before
    key = message.routing_key
    if message.exchange:
        exchange = f"exchange/{message.exchange}"
        _add(edges, Edge(start, exchange, "dead-letter", "last dead-letters to"))
        _add(edges, Edge(exchange, f"queue/{queue}", "binding", "routes to", (key,), key))
    else:
        what = "last dead-letters to"
        _add(edges, Edge(start, f"queue/{queue}", "dead-letter", what, (key,), key))


def _add(edges: dict[tuple[str, str], Edge], edge: Edge) -> None:
    """Keep the first edge between two ends."""
    edges.setdefault((edge.source, edge.target), edge)


def _graph(deaths: tuple[Death, ...], edges: Iterable[Edge], queue: str) -> Graph:
    drawn = tuple(edges)
    badges: dict[str, list[str]] = {}
    for number, death in enumerate(deaths, start=1):
        badge = f"{number}: {death.reason}" + (f" ×{death.count}" if death.count > 1 else "")
        badges.setdefault(f"queue/{death.queue}", []).append(visible(badge))
    ids = dict.fromkeys([end for edge in drawn for end in (edge.source, edge.target)])
    ids |= dict.fromkeys(badges)
    nodes = tuple(_node(end, badges.get(end, []), queue) for end in ids)
    kept = {node.id for node in nodes}
    return Graph(nodes, tuple(e for e in drawn if e.source in kept))


def _node(end: str, deaths: list[str], queue: str) -> Node:
    kind, _, name = end.partition("/")
    if kind == "exchange":
        return Node(end, "exchange", name)
    words = "last queue" if name == queue else "queue"
    return Node(end, "queue", name, words, badge=" · ".join(deaths[:2])[:40])
