from __future__ import annotations

import pytest

from tests.graph.pictures import delay_queue, pair, seen
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.graph.build import Fact, Graph, build, facts, sentence
from topology.graph.edges import forwarder_edges
from topology.message import Forwarder
from topology.snapshot import QueueNumbers


def edges(graph: Graph) -> set[tuple[str, str, str, str]]:
    return {(edge.source, edge.target, edge.kind, edge.label) for edge in graph.edges}


def test_a_retry_pair_is_a_ring_of_two_exchanges_and_two_queues() -> None:
    graph = build(pair())
    assert edges(graph) == {
        ("exchange/orders", "queue/orders", "binding", "orders"),
        ("queue/orders", "exchange/orders-retry", "dead-letter", "rejected"),
        ("exchange/orders-retry", "queue/orders-retry", "binding", "orders"),
        ("queue/orders-retry", "exchange/orders", "dead-letter", "after 5m"),
    }


def test_the_facts_say_every_arrow_in_words() -> None:
    rows = facts(build(pair()))
    assert Fact("queue orders", "dead-letters when rejected", "", "exchange orders-retry") in rows
    assert Fact("queue orders-retry", "dead-letters after 5m", "", "exchange orders") in rows
    assert Fact("exchange orders", "binds to", "orders", "queue orders") in rows
    assert len(rows) == 4


def test_an_exchange_that_nobody_has_is_drawn_as_missing() -> None:
    queue = Queue("orders", arguments=Arguments({"x-dead-letter-exchange": "gone"}))
    graph = build(Definitions.of([queue]))
    assert graph.node("exchange/gone").missing
    assert not graph.node("queue/orders").missing
    assert facts(graph)[0].target == "exchange gone (missing)"
    assert sentence(graph.node("exchange/gone")) == "Exchange gone is missing in the broker."


def test_what_is_wanted_and_not_there_is_drawn_as_missing() -> None:
    there = pair()
    graph = build(seen(there.without([("queue", "orders-retry")])), wanted=there)
    assert [node.id for node in graph.nodes if node.missing] == ["queue/orders-retry"]
    assert graph.node("queue/orders-retry").mark == "missing"


def test_a_binding_that_is_wanted_and_not_there_says_so_between_ends_that_are() -> None:
    there, lost = pair(), Binding("orders", "orders", "orders")
    graph = build(seen(there.without([lost.identity])), wanted=there)
    gone = ("exchange/orders", "queue/orders", "binding", "orders (missing)")
    kept = ("exchange/orders-retry", "queue/orders-retry", "binding", "orders")
    assert {gone, kept} <= edges(graph)
    said = Fact("exchange orders", "missing binding to", "orders (missing)", "queue orders")
    assert said in facts(graph)


@pytest.mark.parametrize("lost", ["queue", "exchange"])
def test_a_binding_whose_end_is_gone_is_one_that_should_be_and_the_end_says_why(lost: str) -> None:
    there = pair()
    left = there.without([(lost, "orders"), Binding("orders", "orders", "orders").identity])
    graph = build(seen(left), wanted=there)
    said = [fact.what for fact in facts(graph) if fact.source == "exchange orders"]
    assert said == ["missing binding to"]
    assert ("exchange/orders", "queue/orders", "binding", "orders") in edges(graph)


def test_the_default_exchange_binds_also_what_is_missing() -> None:
    wanted = Definitions.of([delay_queue("jobs_dlq_60", "jobs", 60)])
    graph = build(seen(Definitions()), wanted=wanted)
    assert Fact("exchange (default exchange)", "binds by name", "jobs", "queue jobs (missing)") in (
        facts(graph)
    )


def test_what_stands_beside_a_part_is_drawn_as_it_is_and_leads_no_further() -> None:
    jobs = Queue("jobs", arguments=Arguments({"x-dead-letter-exchange": "far"}))
    room = delay_queue("jobs_dlq_60", "jobs", 60)
    snapshot = seen(Definitions.of([room]), {"jobs": QueueNumbers(messages=3, consumers=1)})
    graph = build(snapshot, beside=Definitions.of([jobs, room, Exchange("far")]))
    assert not any(node.missing for node in graph.nodes)
    assert graph.node("queue/jobs").mark == "busy"
    assert {node.id for node in graph.nodes} == {
        "queue/jobs_dlq_60",
        "exchange/",
        "queue/jobs",
    }


def test_a_forwarder_is_two_arrows_to_what_may_be_missing() -> None:
    extra_edges = forwarder_edges([Forwarder("w", "work", "room", "due")])
    graph = build(Definitions.of([Queue("w"), Queue("room")]), extra_edges=extra_edges)
    assert edges(graph) == {
        ("queue/w", "queue/work", "forwarder", "when due"),
        ("queue/w", "queue/room", "forwarder", "not yet due"),
    }
    assert [node.id for node in graph.nodes if node.missing] == ["queue/work"]


def test_of_two_bindings_between_the_same_ends_only_the_lost_one_is_missing() -> None:
    there = Definitions.of([Exchange("x"), Queue("q"), Binding("x", "q", "a")])
    graph = build(there, wanted=there | Definitions.of([Binding("x", "q", "b")]))
    assert edges(graph) == {("exchange/x", "queue/q", "binding", "a, b (missing)")}
    assert facts(graph)[0].what == "binds to"


def test_what_differs_from_the_wanted_is_drawn_as_it_is() -> None:
    there = Definitions.of([Queue("orders", durable=False)])
    graph = build(there, wanted=Definitions.of([Queue("orders")]))
    assert [node.id for node in graph.nodes] == ["queue/orders"]
    assert not graph.node("queue/orders").missing


def test_the_default_exchange_is_drawn_only_where_a_queue_dies_through_it() -> None:
    assert "exchange/" not in {node.id for node in build(pair()).nodes}
    graph = build(Definitions.of([Queue("jobs"), delay_queue("jobs_dlq_60", "jobs", 60)]))
    assert ("queue/jobs_dlq_60", "exchange/", "dead-letter", "after 1m, as jobs") in edges(graph)
    assert ("exchange/", "queue/jobs", "binding", "jobs") in edges(graph)
    assert not graph.node("exchange/").missing
    assert graph.node("exchange/").title == "(default exchange)"


def test_several_keys_between_two_ends_are_one_arrow() -> None:
    objects: list[BrokerObject] = [
        Exchange("x", "topic"),
        Queue("q"),
        Binding("x", "q", "b"),
        Binding("x", "q", "a"),
    ]
    (edge,) = build(Definitions.of(objects)).edges
    assert (edge.keys, edge.label) == (("a", "b"), "a, b")


def test_a_fanout_arrow_has_no_key_and_a_headers_arrow_has_its_arguments() -> None:
    objects: list[BrokerObject] = [
        Exchange("all", "fanout"),
        Exchange("some", "headers"),
        Queue("q"),
        Binding("all", "q", "ignored"),
        Binding("some", "q", "", arguments=Arguments({"x-match": "all", "kind": "pdf"})),
    ]
    labels = {edge.source: edge.label for edge in build(Definitions.of(objects)).edges}
    assert labels == {"exchange/all": "", "exchange/some": "kind=pdf, x-match=all"}


def test_an_empty_key_on_a_direct_exchange_is_said() -> None:
    graph = build(Definitions.of([Exchange("x"), Queue("q"), Binding("x", "q", "")]))
    assert graph.edges[0].label == "(empty key)"


def test_an_alternate_exchange_is_an_arrow_of_its_own() -> None:
    first = Exchange("x", arguments=Arguments({"alternate-exchange": "lost"}))
    graph = build(Definitions.of([first, Exchange("lost", "fanout")]))
    assert edges(graph) == {("exchange/x", "exchange/lost", "alternate", "unroutable")}


def test_a_bounded_queue_says_that_it_also_dead_letters_when_full() -> None:
    arguments = Arguments({"x-dead-letter-exchange": "x", "x-max-length": 10})
    graph = build(Definitions.of([Exchange("x"), Queue("q", arguments=arguments)]))
    assert graph.edges[0].label == "rejected or full"


def test_a_tap_is_left_out() -> None:
    tap = "delayboard.tap.orders"
    tapped = pair() | Definitions.of([Queue(tap), Binding("orders", tap, "orders")])
    assert build(tapped) == build(pair())


def test_live_numbers_and_rates_stand_on_the_nodes() -> None:
    numbers = QueueNumbers(messages=5, consumers=0)
    graph = build(seen(pair(), {"orders": numbers}, {"orders": 1.5}))
    assert graph.node("queue/orders").numbers == numbers
    assert graph.node("queue/orders").mark == "no_consumer"
    assert graph.node("exchange/orders").rate == 1.5
    assert graph.node("queue/orders-retry").mark == "unknown"
    assert build(pair()).node("queue/orders").numbers is None
