from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from tests.topology.builders import a_queue
from topology.definitions import Binding, Definitions, Exchange
from topology.graph.build import build, shorten
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels


def chain(*names: str) -> list[Exchange | Binding]:
    bound = [
        Binding(above, below, "k", destination_is_queue=False) for above, below in pairwise(names)
    ]
    return [*(Exchange(name, "topic") for name in names), *bound]


def test_exchanges_that_only_hand_on_become_one_arrow() -> None:
    objects = [*chain("a", "b", "c", "d"), a_queue("q"), Binding("d", "q", "k")]
    short = shorten(build(Definitions.of(objects)))
    assert [node.id for node in short.nodes] == ["exchange/a", "queue/q"]
    (edge,) = short.edges
    assert (edge.source, edge.target, edge.label) == ("exchange/a", "queue/q", "over 3 exchanges")


def test_where_a_way_forks_or_comes_together_the_exchange_stays() -> None:
    objects = [*chain("a", "b"), *(a_queue(name) for name in "qrs"), Binding("a", "q", "k")]
    objects += [Binding("b", "r", "k"), Binding("b", "s", "k")]
    graph = build(Definitions.of(objects))
    assert shorten(graph) == graph


def test_what_dies_goes_straight_to_where_it_waits_next() -> None:
    objects = [a_queue("q", ttl=5, dlx="a"), *chain("a", "b"), a_queue("r"), Binding("b", "r", "k")]
    short = shorten(build(Definitions.of(objects)))
    (edge,) = short.edges
    assert (edge.source, edge.target, edge.kind) == ("queue/q", "queue/r", "dead-letter")
    assert edge.label == "after 5ms"
    assert edge.what == "dead-letters after 5ms, over 2 exchanges"


def test_a_queue_alone_stays() -> None:
    graph = build(Definitions.of([a_queue("q")]))
    assert shorten(graph) == graph


def test_the_way_through_delay_levels_is_short_enough_to_be_looked_at() -> None:
    params = delay_levels_params.Params()
    route = delay_levels.route(params, timedelta(seconds=2**20), "orders")
    found = delay_levels.definitions(params) | route.declares | Definitions.of([a_queue("orders")])
    passed = {"nsb.v2.delay-delivery", *(f"nsb.v2.delay-level-{n:02}" for n in range(21))}
    way = Definitions.of(
        obj
        for obj in found
        if (isinstance(obj, Exchange) and obj.name in passed)
        or obj.identity in {("queue", "orders"), ("queue", "nsb.v2.delay-level-20")}
        or (isinstance(obj, Binding) and obj.source in passed and "0.#" in obj.routing_key)
        or (isinstance(obj, Binding) and obj.destination in ("orders", "nsb.v2.delay-level-20"))
    )
    assert len(shorten(build(way)).nodes) <= 6
