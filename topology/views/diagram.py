"""A topology's part of a vhost as a diagram and as the same facts in a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Identity, Queue
from topology.graph.build import (
    Fact,
    Graph,
    broken_places,
    build,
    facts,
    route_steps,
    shorten,
    with_badges,
)
from topology.graph.dot import arrange
from topology.graph.edges import forwarder_edges
from topology.graph.geometry import Direction
from topology.graph.ladder import Ladder, Levels, build_ladder, fold
from topology.graph.ladder_places import place_ladder
from topology.graph.svg import draw as draw_svg
from topology.message import Forwarder
from topology.models import Broker, Topology
from topology.patterns.delay_levels import params as level_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import ParamsError, Pattern
from topology.patterns.table import KINDS
from topology.routing.trace_route import Answer
from topology.snapshot import Snapshot

MOST_MEMBERS = 30
FORWARDER_NOTE = (
    "Dash-dotted lines are not bindings. A forwarder forwards messages there, “when due” or "
    "“not yet due”."
)
LINE_NOTES = {"alternate": "Dotted lines lead to alternate exchanges.", "forwarder": FORWARDER_NOTE}
EXAMPLE_TARGET = "orders"
EXAMPLE_DELAYS = (timedelta(seconds=10), timedelta(minutes=5))


@dataclass(frozen=True)
class Diagram:
    """`ladder` is the table of a diagram of delay levels, `facts` that of any other.

    `note` says in what way it is not the whole or not as usual, "" when it is.
    """

    svg: SafeString
    facts: Sequence[Fact] = ()
    note: str = ""
    ladder: Ladder | None = None


def draw(topology: Topology, snapshot: Snapshot | None, *, all_levels: bool = True) -> Diagram:
    """What exists of it and what is missing; without a snapshot only what should exist.

    Without `all_levels`, levels that hold and pass nothing are folded.
    """
    params = topology.parsed
    wanted = topology.pattern.definitions(params)
    forwarders = topology.pattern.forwarders(params)
    title, name = f"Topology {topology.name}", f"topology-{topology.pk}"
    if topology.kind == delay_levels.KIND:
        ladder = build_ladder(_levels(params), snapshot or wanted, wanted)
        return _ladder(ladder if all_levels else fold(ladder), title, name)
    if topology.kind == hold_queues.KIND:
        return _hold_queues(topology.pattern, params, snapshot, title, name)
    beside = snapshot.definitions if snapshot else _with_work(wanted, forwarders)
    found = _part(snapshot, wanted) if snapshot else wanted
    graph = build(found, wanted=wanted, beside=beside, extra_edges=forwarder_edges(forwarders))
    return draw_graph(graph, title, name)


def draw_example(kind: str) -> Diagram:
    """An example of a pattern as it should be, without a broker. Raises KeyError."""
    pattern = KINDS[kind]
    title, name = f"An example of {pattern.EXPLANATION.title.lower()}", f"example-{kind}"
    forwarders = pattern.forwarders(pattern.EXAMPLE)
    drawn = _with_work(_example(pattern, pattern.EXAMPLE), forwarders)
    if kind == delay_levels.KIND:
        return _ladder(build_ladder(_levels(pattern.EXAMPLE), drawn, drawn), title, name)
    return draw_graph(build(drawn, extra_edges=forwarder_edges(forwarders)), title, name)


def draw_path(
    answer: Answer,
    snapshot: Snapshot,
    broker: Broker,
    objects: Sequence[Identity] = (),
    *,
    place: str = "",
) -> Diagram:
    """What a walk passes, with the order and the times of its waits, and where it breaks.

    `place` is the queue in which the message is now.
    """
    found = replace(snapshot, definitions=answer.path)
    there = {f"queue/{queue.name}" for queue in answer.path.queues}
    extra_edges = [
        edge for edge in forwarder_edges(answer.forwarders) if {edge.source, edge.target} <= there
    ]
    drawn = build(found, beside=snapshot.definitions, extra_edges=extra_edges)
    broken = broken_places(answer.walk, snapshot.definitions, objects)
    steps = route_steps(answer.walk)
    if step := steps.get(f"queue/{place}"):
        steps[f"queue/{place}"] = f"{step}, now here"
    graph = with_badges(shorten(drawn), steps, broken)
    title, name = f"Route through {broker.name}", f"route-{broker.pk}"
    return draw_graph(graph, title, name, direction="down")


def _levels(params: level_params.Params) -> Levels:
    names = [level_params.level_name(params, level) for level in range(params.levels)]
    return Levels(names, level_params.delivery_name(params), params.unit)


def _ladder(ladder: Ladder, title: str, name: str) -> Diagram:
    return Diagram(draw_ladder(ladder, title, name), ladder=ladder)


def draw_ladder(ladder: Ladder, title: str, name: str) -> SafeString:
    """Low enough for a laptop screen with 28 levels; `name` is unique on its page."""
    context = {"placed": place_ladder(ladder), "title": title, "id": name}
    return render_to_string("topology/ladder.svg", context)


def draw_graph(
    graph: Graph, title: str, name: str, note: str = "", *, direction: Direction | None = None
) -> Diagram:
    """A graph and its table; `name` is unique on the page."""
    layout = arrange(graph, direction=direction)
    # topology.graph.svg escapes every text that it writes.
    svg = SafeString(draw_svg(layout, title=title, id=name))
    kinds = {edge.kind for edge in graph.edges}
    of_lines = [words for kind, words in LINE_NOTES.items() if kind in kinds]
    return Diagram(
        svg, facts(graph), " ".join(part for part in (*of_lines, note, layout.note) if part)
    )


def _hold_queues(
    pattern: Pattern, params: Any, snapshot: Snapshot | None, title: str, name: str
) -> Diagram:
    """The queues that exist now; when there is none, what the next message would make."""
    queues = hold_queues.members(params, snapshot.definitions) if snapshot else ()
    if snapshot is None or not queues:
        note = "Hold queues are temporary. The diagram shows an example."
        return draw_graph(build(_with_ends(_example(pattern, params))), title, name, note)
    drawn = queues[:MOST_MEMBERS]
    more = len(queues) - len(drawn)
    note = f"The diagram omits {more} queues with longer delays." if more else ""
    # The queues, the exchanges they die into, and the bindings that take on what died.
    routes = {(queue.dead_letter_exchange, queue.dead_letter_routing_key) for queue in drawn}
    ends = {exchange for exchange, _ in routes if exchange}
    exchanges = [exchange for exchange in snapshot.definitions.exchanges if exchange.name in ends]
    wide = {exchange.name for exchange in exchanges if exchange.type != "direct"}
    bindings = [
        binding
        for binding in snapshot.definitions.bindings
        if binding.source in ends
        and (binding.source in wide or (binding.source, binding.routing_key) in routes)
    ]
    behind = {b.destination for b in bindings if b.destination_is_queue}
    behind |= {key for exchange, key in routes if exchange == "" and key}
    beyond = [queue for queue in snapshot.definitions.queues if queue.name in behind]
    part = replace(snapshot, definitions=Definitions.of([*drawn, *exchanges, *bindings, *beyond]))
    graph = build(part, beside=snapshot.definitions)
    return draw_graph(graph, title, name, note)


def _example(pattern: Pattern, params: Any) -> Definitions:
    """The definitions and what a route or two would add to them."""
    drawn = pattern.definitions(params)
    targets = list(pattern.targets(params))[:1] or [EXAMPLE_TARGET]
    for delay in list(pattern.delays(params) or EXAMPLE_DELAYS)[:2]:
        for target in targets:
            with suppress(ParamsError):
                drawn |= pattern.route(params, delay, target).declares
    return drawn


def _with_ends(drawn: Definitions) -> Definitions:
    """With the exchanges that its queues die into: in an example nothing is missing."""
    there = {exchange.name for exchange in drawn.exchanges}
    ends = {queue.dead_letter_exchange for queue in drawn.queues} - {None, ""} - there
    return drawn | Definitions.of(Exchange(name) for name in ends if name)


def _with_work(drawn: Definitions, forwarders: Sequence[Forwarder] = ()) -> Definitions:
    """With the ends and, where they lead nowhere yet, the queues in which the messages arrive."""
    whole = _with_ends(drawn)
    leading = {binding.source for binding in whole.bindings}
    ends = {binding.destination for binding in whole.bindings if binding.destination_is_queue}
    ends |= {forwarder.onward for forwarder in forwarders}
    bound: list[BrokerObject] = []
    for queue in drawn.queues:
        exchange, key = queue.dead_letter_exchange, queue.dead_letter_routing_key
        if exchange is None or not key or exchange in leading:
            continue
        ends.add(key)
        if exchange:
            bound.append(Binding(exchange, key, key))
    work = [Queue(name) for name in ends if whole.queue(name) is None]
    return whole | Definitions.of([*work, *bound])


def _part(snapshot: Snapshot, wanted: Definitions) -> Snapshot:
    """The topology's own objects as they are, and what is bound to them."""
    names = {obj.name for obj in wanted if not isinstance(obj, Binding)}
    there = snapshot.definitions
    bindings = [b for b in there.bindings if b.source in names or b.destination in names]
    ends = names | {end for b in bindings for end in (b.source, b.destination)}
    part = Definitions.of(
        [
            *(exchange for exchange in there.exchanges if exchange.name in ends),
            *(queue for queue in there.queues if queue.name in ends),
            *bindings,
        ]
    )
    return replace(snapshot, definitions=part)
