"""Definitions -> a graph: what is drawn, and the same facts as rows of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from topology.content.text import count_of
from topology.definitions import Definitions, Identity, Queue
from topology.delays import format_delay
from topology.graph.edges import DEFAULT, Edge, edges_of
from topology.graph.live_values import queue_mark
from topology.routing.outcome import RouteOutcome, Walk
from topology.snapshot import QueueNumbers, Snapshot

# Values of a quorum queue's delayed retry that are a delay (rabbitmq.com/docs/quorum-queues,
# "Delayed Retry").
KINDS = ("all", "failed", "returned")
NOTHING = Definitions()
# Columns between a queue's type and the words in its badge.
BADGE_ROOM = 11
LOST, STUCK, WRONG = "lost here", "stuck here", "problem here"


@dataclass(frozen=True)
class Retry:
    """The shortest and longest time until a retry; `limit` is None when no limit is stated."""

    shortest: timedelta
    longest: timedelta
    limit: int | None

    @property
    def badge(self) -> str:
        return "–".join(self._ends) + ("" if self.limit is None else f", limit {self.limit}")

    @property
    def sentence(self) -> str:
        times = {None: "", 1: ", once at most"}
        most = times.get(self.limit, f", at most {self.limit} times")
        return f"returned messages are redelivered after {' to '.join(self._ends)}{most}"

    @property
    def _ends(self) -> dict[str, None]:
        return dict.fromkeys(format_delay(end) for end in (self.shortest, self.longest))


def retry_of(queue: Queue) -> Retry | None:
    """None for a queue that delivers again at once. The longest wait is the shortest by default."""
    arguments = queue.arguments
    shortest = arguments.number("x-delayed-retry-min")
    if (
        queue.type != "quorum"
        or arguments.text("x-delayed-retry-type") not in KINDS
        or shortest is None
        or shortest <= 0
    ):
        return None
    longest = arguments.number("x-delayed-retry-max")
    limit = arguments.number("x-delivery-limit")
    bounds = (shortest, max(shortest, longest or 0))
    first, last = (timedelta(milliseconds=ms) for ms in bounds)
    return Retry(first, last, limit if limit is not None and limit >= 0 else None)


@dataclass(frozen=True)
class Node:
    """An exchange or a queue of the diagram; its id is "queue/<name>" or "exchange/<name>".

    `missing`: it is named or wanted, but the broker does not have it. `mark` is one of
    `live_values.MARK_WORDS`, "" for an exchange. `badge` is written on its upper edge, `broken`
    on its lower one: what goes wrong there. `small` are lines that its box must have room for.
    """

    id: str
    kind: Literal["exchange", "queue"]
    name: str
    type: str = ""
    ttl: timedelta | None = None
    retry: Retry | None = None
    dead_letter_exchange: str | None = None
    limit: int | None = None
    missing: bool = False
    numbers: QueueNumbers | None = None
    rate: float | None = None
    mark: str = ""
    badge: str = ""
    broken: str = ""
    small: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name or "(default exchange)"


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def node(self, node_id: str) -> Node:
        """The node of this id. Raises KeyError."""
        return {node.id: node for node in self.nodes}[node_id]


@dataclass(frozen=True)
class Fact:
    """One arrow as a row of a table: from where, what happens, by which key, to where."""

    source: str
    what: str
    key: str
    target: str


def build(
    found: Snapshot | Definitions,
    *,
    wanted: Definitions | None = None,
    beside: Definitions = NOTHING,
    extra_edges: Sequence[Edge] = (),
) -> Graph:
    """The graph of a vhost or of a part of it.

    Drawn as missing: what `wanted` names and `found` does not have, and what a binding, a
    dead-letter argument or one of the `extra_edges` names and nobody has. A name `beside` the part
    is drawn as it is there, without its own edges. Taps and probe queues of ours are omitted.
    """
    snapshot = found if isinstance(found, Snapshot) else None
    definitions = found.definitions if isinstance(found, Snapshot) else found
    missing = wanted.without(obj.identity for obj in definitions) if wanted else NOTHING
    drawn = (definitions | missing).without_taps().without_probes()
    edges = _mark_missing_bindings(edges_of(drawn), definitions) if wanted else edges_of(drawn)
    edges = (*edges, *extra_edges)
    ends = sorted({edge.source for edge in edges} | {edge.target for edge in edges})
    named = ((kind, name) for kind, _, name in (end.partition("/") for end in ends))
    near = beside.only(named).without(obj.identity for obj in drawn)
    nodes = [
        Node(f"exchange/{exchange.name}", "exchange", exchange.name, exchange.type)
        for exchange in (drawn | near).exchanges
    ]
    nodes += [_queue_node(queue) for queue in (drawn | near).queues]
    by_id = {node.id: node for node in nodes}
    for end in ends:
        by_id.setdefault(end, _make_named_node(end))
    there = definitions | near
    finished = tuple(_finish_node(node, there, snapshot) for _, node in sorted(by_id.items()))
    return Graph(finished, edges)


def with_badges(graph: Graph, badges: Mapping[str, str], broken: Mapping[str, str]) -> Graph:
    """The graph with a few words on the nodes of these ids."""
    nodes = tuple(
        replace(node, badge=badges.get(node.id, ""), broken=broken.get(node.id, ""))
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def facts(graph: Graph) -> tuple[Fact, ...]:
    """Every arrow of the diagram as a row, in the diagram's words."""
    titles = {node.id: f"{node.kind} {node.title}" for node in graph.nodes}
    missing = {node.id for node in graph.nodes if node.missing}
    return tuple(
        Fact(
            source=titles[edge.source],
            what=edge.what,
            key=", ".join(edge.keys),
            target=titles[edge.target] + (" (missing)" if edge.target in missing else ""),
        )
        for edge in graph.edges
    )


def sentence(node: Node) -> str:
    """All that is known about a node, for a tooltip and for screen readers."""
    words = [f"{node.kind.capitalize()} {node.title}"]
    if node.missing:
        return f"{words[0]} is missing in the broker."
    if node.type:
        words.append(node.type)
    if node.ttl is not None:
        words.append(f"message TTL {format_delay(node.ttl)}")
    if node.retry is not None:
        words.append(node.retry.sentence)
    if node.limit is not None:
        words.append(f"holds at most {node.limit} messages")
    if node.numbers is not None and node.numbers.messages is not None:
        words.append(f"{node.numbers.messages} messages at drawing time")
    return ", ".join(words) + "."


def _mark_missing_bindings(edges: Iterable[Edge], definitions: Definitions) -> tuple[Edge, ...]:
    """Mark missing bindings; between two ends that are bound, each key by itself."""
    bound = {(edge.source, edge.target): edge.keys for edge in edges_of(definitions)}
    nodes = {f"exchange/{exchange.name}" for exchange in definitions.exchanges}
    nodes |= {f"queue/{queue.name}" for queue in definitions.queues}
    return tuple(_mark_missing(one, bound.get((one.source, one.target)), nodes) for one in edges)


def _mark_missing(edge: Edge, bound: Collection[str] | None, nodes: Collection[str]) -> Edge:
    """`bound` are the keys by which the two ends are bound, None when they are not bound.

    The box of a missing end is marked, so the arrow's label does not repeat it.
    """
    missing = set(edge.keys) - set(bound or ())
    is_there = bound is not None and not missing
    if is_there or edge.kind != "binding" or edge.source == DEFAULT:
        return edge
    what = "missing binding to" if bound is None else edge.what
    if edge.source not in nodes or edge.target not in nodes:
        return replace(edge, what=what)
    keys = tuple(f"{key} (missing)" if key in missing else key for key in edge.keys)
    return replace(edge, what=what, keys=keys, label=", ".join(keys) or "missing")


def _queue_node(queue: Queue) -> Node:
    retry = retry_of(queue)
    return Node(
        f"queue/{queue.name}",
        "queue",
        queue.name,
        queue.type,
        ttl=queue.message_ttl,
        dead_letter_exchange=queue.dead_letter_exchange,
        limit=queue.arguments.number("x-max-length"),
        retry=retry,
        small=(f"{queue.type}{retry.badge:>{len(retry.badge) + BADGE_ROOM}}",) if retry else (),
    )


def _make_named_node(node_id: str) -> Node:
    """A node known by its name only: the default exchange, or something missing."""
    kind, _, name = node_id.partition("/")
    if kind == "exchange":
        return Node(node_id, "exchange", name, "" if name else "direct")
    return Node(node_id, "queue", name)


def _finish_node(node: Node, there: Definitions, found: Snapshot | None) -> Node:
    """With its numbers, where it is there and they are known."""
    if there.get((node.kind, node.name)) is None and node.id != DEFAULT:
        return replace(node, missing=True, mark="missing")
    if found is None:
        return node
    if node.kind == "exchange":
        return replace(node, rate=found.exchange_rates.get(node.name))
    queue = there.queue(node.name)
    numbers = found.numbers.get(node.name, QueueNumbers())
    mark = queue_mark(queue, numbers, found.trend_of(node.name)) if queue else ""
    return replace(node, numbers=numbers, mark=mark)


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
