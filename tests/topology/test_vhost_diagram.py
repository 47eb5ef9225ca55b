from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.builders import PAIR, TAP, a_queue, a_snapshot
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.graph.edges import forwarder_edges
from topology.graph.geometry import PADDING, SMALL_CELL, cells
from topology.graph.live_values import queue_mark
from topology.graph.vhost_cards import (
    MOST_LINKED,
    Card,
    Overview,
    arrange_cards,
    describe_objects,
    draw_cards,
    members,
    overview,
)
from topology.graph.vhost_survey import EXCHANGES, MISSING, QUEUES, Group, Survey, part, survey
from topology.message import Forwarder
from topology.snapshot import QueueNumbers

MEMBERS = frozenset(
    f"{kind}/{n}" for kind in ("queue", "exchange") for n in ("orders", "orders-retry")
)
ORDERS = Group("retry_pair/orders", "orders", "Retry pair", MEMBERS, waiting=7)


def surveyed(*objects: Exchange | Queue | Binding, **numbers: QueueNumbers) -> Survey:
    whole = PAIR | TAP | Definitions.of(objects)
    counts = {queue.name: QueueNumbers(0, 0, 0, 0) for queue in whole.queues} | numbers
    return survey(a_snapshot(whole, counts), [ORDERS])


def cards(seen: Overview) -> dict[str, Card]:
    return {card.key: card for card in seen.cards}


def links(seen: Overview) -> set[tuple[str, str, str]]:
    return {(edge.source, edge.target, edge.kind) for edge in seen.edges}


def test_a_topology_is_one_box_and_what_belongs_to_none_is_one_for_each_kind() -> None:
    seen = overview(surveyed(Exchange("shop"), Queue("audit"), Queue("parked_messages")), most=500)
    assert set(cards(seen)) == {ORDERS.key, QUEUES, EXCHANGES}
    assert (cards(seen)[ORDERS.key].exchanges, cards(seen)[ORDERS.key].queues) == (2, 2)
    assert cards(seen)[ORDERS.key].messages == 7
    assert cards(seen)[QUEUES].queues == 2
    assert seen.total == 3


def test_what_leads_from_one_box_to_another_is_one_arrow_with_its_number() -> None:
    seen = overview(
        surveyed(
            Exchange("shop"),
            Binding("shop", "orders", "a", destination_is_queue=False),
            Binding("shop", "orders-retry", "b"),
            a_queue("hold", ttl=500, dlx="", key="orders"),
            Binding("amq.topic", "hold", "#"),
            Exchange("amq.topic", "topic"),
            Exchange("amq.fanout", "fanout"),
        ),
        most=500,
    )
    assert links(seen) == {
        (EXCHANGES, ORDERS.key, "binding"),
        (EXCHANGES, QUEUES, "binding"),
        (QUEUES, ORDERS.key, "dead-letter"),
    }
    labels = {edge.target: edge.label for edge in seen.edges if edge.source == EXCHANGES}
    assert labels == {ORDERS.key: "2 × binding", QUEUES: "#"}
    assert cards(seen)[EXCHANGES].exchanges == 2
    assert seen.list_targets()[EXCHANGES] == ["Other queues", "orders"]


def test_what_is_named_and_not_there_has_a_box_that_says_so() -> None:
    seen = overview(surveyed(a_queue("work", dlx="nowhere")), most=500)
    assert cards(seen)[MISSING].state == "missing in the broker"
    assert (QUEUES, MISSING, "dead-letter") in links(seen)


def test_what_is_in_trouble_comes_first_and_says_in_how_many_queues() -> None:
    stuck = QueueNumbers(5, 5, 0, 0)
    seen = overview(surveyed(Queue("a"), Queue("b"), Queue("c"), a=stuck, b=stuck), most=500)
    assert [card.key for card in seen.cards] == [QUEUES, ORDERS.key]
    assert (
        cards(seen)[QUEUES].state == "messages wait and the queue has no consumer (2 of 3 queues)"
    )
    assert cards(seen)[QUEUES].messages == 10


def test_a_topology_that_lacks_something_is_incomplete() -> None:
    broken = Group("retry_pair/x", "x", "Retry pair", frozenset({"queue/x"}), trouble=("Gone.",))
    seen = overview(survey(a_snapshot(Definitions.of([Queue("x")])), [broken]), most=500)
    (card,) = seen.cards
    assert (card.mark, card.state, card.trouble) == ("missing", "incomplete", ("Gone.",))


def test_what_two_share_is_drawn_with_the_first_and_both_lead_there() -> None:
    objects = Definitions.of(
        [Exchange("x"), a_queue("a", dlx="x"), a_queue("b", dlx="x"), Binding("x", "a", "")]
    )
    groups = [
        Group(f"g/{name}", name, "k", frozenset({f"queue/{name}", "exchange/x"})) for name in "ab"
    ]
    whole = survey(a_snapshot(objects), groups)
    seen = overview(whole, most=500)
    assert [(card.title, card.exchanges, card.queues) for card in seen.cards] == [
        ("a", 1, 1),
        ("b", 0, 1),
    ]
    assert links(seen) == {("g/b", "g/a", "dead-letter")}
    assert {card.key for card in members(whole, groups[1].members, most=9).cards} == {
        "queue/b",
        "exchange/x",
    }


def test_a_forwarder_s_way_leads_to_the_queue_that_it_works_for() -> None:
    extra_edges = forwarder_edges([Forwarder("wait", "work", "room", "due")])
    group = Group("g/w", "w", "k", frozenset({"queue/wait", "queue/room"}), extra_edges=extra_edges)
    there = Definitions.of([Queue("wait"), Queue("room")])
    gone = overview(survey(a_snapshot(there), [group]), most=9)
    assert links(gone) == {("g/w", MISSING, "forwarder")}
    whole = survey(a_snapshot(there | Definitions.of([Queue("work")])), [group])
    assert links(overview(whole, most=9)) == {("g/w", QUEUES, "forwarder")}
    assert [way.target for way in whole.extra_edges({"queue/work"})] == ["queue/work"]


def test_a_part_has_the_queues_that_die_into_it() -> None:
    whole = Definitions.of(
        [a_queue("hold", ttl=5, dlx="", key="work"), Queue("work"), a_queue("far", dlx="x")]
    )
    assert {queue.name for queue in part(whole, ["queue/work"]).queues} == {"hold", "work"}
    assert {queue.name for queue in part(whole, ["exchange/x"]).queues} == {"far"}


def test_a_box_has_room_for_everything_that_is_written_in_it() -> None:
    held = "29 exchanges · 28 queues"
    card = Card("g/x", "x", "k", "group", exchanges=29, queues=28)
    assert describe_objects(card) == held
    (box,) = arrange_cards(Overview((card,), (), 1)).boxes
    assert box.width >= cells(held) * SMALL_CELL + 2 * PADDING


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("RETRY", {ORDERS.key}),
        ("aud", {QUEUES}),
        ("o", {ORDERS.key, EXCHANGES}),
        ("nothing", set()),
    ],
)
def test_a_search_keeps_what_holds_a_fitting_name(search: str, found: set[str]) -> None:
    whole = surveyed(Exchange("shop"), Queue("audit"), Queue("parked_messages"))
    seen = overview(whole, search=search, most=500)
    assert set(cards(seen)) == found
    if search == "aud":
        assert cards(seen)[QUEUES].queues == 1


def test_of_many_things_some_are_drawn_and_all_are_counted() -> None:
    whole = surveyed(*(Queue(f"q{n}") for n in range(900)), q7=QueueNumbers(9, 9, 0, 0))
    seen = members(whole, whole.rest[QUEUES], most=500)
    assert (len(seen.cards), seen.total) == (500, 900)
    assert seen.cards[0].title == "q7"
    assert members(whole, whole.rest[QUEUES], search="q89", most=500).total == 11


def test_few_boxes_have_arrows_and_many_stand_in_rows_that_do_not_overlap() -> None:
    few = overview(surveyed(Exchange("shop"), Binding("shop", "orders", "a")), most=500)
    assert len(arrange_cards(few).lines) == 1
    groups = [
        Group(f"g/{n}", f"g{n}", "k", frozenset({f"queue/q{n}"})) for n in range(MOST_LINKED + 1)
    ]
    objects: list[Exchange | Queue | Binding] = [Queue(f"q{n}") for n in range(MOST_LINKED + 1)]
    objects += [Exchange("x"), Binding("x", "q1", "")]
    layout = arrange_cards(overview(survey(a_snapshot(Definitions.of(objects)), groups), most=500))
    assert layout.lines == ()
    assert "the diagram omits arrows" in layout.note
    places = [(box.left, box.top) for box in layout.boxes]
    assert len(set(places)) == len(places) == MOST_LINKED + 2
    for one in layout.boxes:
        assert one.left >= 0
        assert one.left + one.width <= layout.width
        assert one.top + one.height <= layout.height
        for other in layout.boxes:
            assert (
                one is other
                or abs(one.x - other.x) >= one.width
                or abs(one.y - other.y) >= (one.height + other.height) / 2
            )


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.lists(names, min_size=1, max_size=5, unique=True), names)
def test_no_name_breaks_the_picture(queues: list[str], title: str) -> None:
    group = Group(f"k/{title}", title, "k", frozenset({f"queue/{queues[0]}"}), 1)
    whole = Definitions.of(
        [Queue(name) for name in queues] + [Queue("x", arguments=a_queue("x", dlx=title).arguments)]
    )
    seen = overview(survey(a_snapshot(whole), [group]), most=500)
    svg = draw_cards(seen, arrange_cards(seen), title=title, id="p")
    root = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "defs", "marker", "path", "g", "rect", "text", "tspan"}


def test_a_part_has_what_is_bound_to_it_and_nothing_else() -> None:
    whole = PAIR | Definitions.of([Exchange("shop"), Queue("far"), Binding("shop", "orders", "k")])
    found = part(whole, ["queue/orders"])
    assert {exchange.name for exchange in found.exchanges} == {"orders", "shop"}
    assert {queue.name for queue in found.queues} == {"orders"}


def test_that_nobody_consumes_is_not_said_where_it_is_not_known() -> None:
    assert queue_mark(Queue("q"), QueueNumbers(messages=3)) == "busy"
    assert queue_mark(Queue("q"), QueueNumbers(messages=3, consumers=0)) == "no_consumer"
