from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from django.template.loader import render_to_string
from hypothesis import given, settings

from tests.graph.pictures import HOSTILE, seen
from tests.topology.pattern_cases import CASES
from tests.topology.test_patterns import standing
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.models import Topology
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_levels.params import Params as LevelParams
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.hold_queues.params import Params as HoldParams
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.table import PATTERNS
from topology.snapshot import QueueNumbers
from topology.views.diagram import FORWARDER_NOTE, MOST_MEMBERS, Diagram, draw, draw_example


def topology(kind: str, params: Any) -> Topology:
    return Topology(pk=7, kind=kind, name=HOSTILE, params=PATTERNS[kind].store(params))


def held(params: HoldParams, delays: int) -> Definitions:
    """The hold queues of so many delays, each a second longer than the one before."""
    made = Definitions.of([Exchange("orders", "topic"), Queue("work"), Queue("other")])
    made |= Definitions.of([Binding("orders", "work", "created"), Binding("far", "other", "x")])
    for seconds in range(1, delays + 1):
        made |= hold_queues.route(params, timedelta(seconds=seconds), "created").declares
    return made


def shown(diagram: Diagram, **context: Any) -> str:
    return render_to_string("topology/_diagram.html", {"diagram": diagram, **context})


@pytest.mark.parametrize("kind", sorted(PATTERNS))
def test_every_pattern_can_be_drawn_without_a_broker(kind: str) -> None:
    diagram = draw_example(kind)
    assert ElementTree.fromstring(diagram.svg).tag.endswith("svg")
    assert "missing" not in diagram.svg
    assert "data-live" not in diagram.svg
    assert "data-live" not in shown(diagram)
    assert diagram.facts or diagram.ladder


def test_the_example_of_levels_has_a_destination() -> None:
    ladder = draw_example(delay_levels.KIND).ladder
    assert ladder is not None
    assert [end.name for end in ladder.destinations] == ["orders"]


def test_delay_levels_are_drawn_as_a_ladder_with_their_table() -> None:
    params = LevelParams()
    names = [queue.name for queue in delay_levels.definitions(params).queues]
    found = seen(
        delay_levels.definitions(params), dict.fromkeys(names, QueueNumbers(5, 3, 0, 0, 0.4))
    )
    diagram = draw(topology(delay_levels.KIND, params), found)
    assert diagram.ladder is not None
    page = shown(diagram, latest=SimpleNamespace(snapshot=found), plan=None)
    assert page.count('<th scope="row" class="number"') == 28
    assert page.count("stuck: no route to a queue</span>") == 28
    assert page.count('<td class="number">2</td>') == 28
    assert "<script>alert" not in page


def test_a_planned_set_is_drawn_without_numbers() -> None:
    diagram = draw(topology(delay_levels.KIND, LevelParams()), None)
    page = shown(diagram, latest=SimpleNamespace(snapshot=None), plan=None)
    assert "data-live=" not in page
    assert "The broker has not answered yet" in page


@pytest.mark.parametrize("kind", sorted(set(PATTERNS) - {delay_levels.KIND, hold_queues.KIND}))
def test_of_a_topology_that_stands_whole_nothing_is_drawn_as_missing(kind: str) -> None:
    def law(params: Any) -> None:
        found = seen(standing(PATTERNS[kind], params))
        diagram = draw(Topology(pk=7, kind=kind, params=PATTERNS[kind].store(params)), found)
        assert [fact for fact in diagram.facts if "(missing)" in fact.target] == []
        assert "node-missing" not in diagram.svg
        assert "missing binding to" not in diagram.svg

    settings(max_examples=8, deadline=None)(given(CASES[kind].params)(law))()


@pytest.mark.parametrize("kind", sorted(PATTERNS))
def test_of_a_plan_nothing_is_drawn_as_missing_before_the_broker_answers(kind: str) -> None:
    example = PATTERNS[kind].EXAMPLE
    assert "node-missing" not in draw(topology(kind, example), None).svg


def test_a_work_queue_that_is_gone_is_drawn_as_missing() -> None:
    params = delay_queues_params.Params("mails", (timedelta(seconds=10),))
    diagram = draw(topology("delay_queues", params), seen(delay_queues.definitions(params)))
    assert [fact.target for fact in diagram.facts if fact.source.startswith("exchange")] == [
        "queue mails (missing)"
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_busy_wait_shows_what_its_forwarder_does_with_the_processing_queue(
    is_there: bool,
) -> None:
    params = busy_wait.EXAMPLE
    work = Definitions.of([Queue(params.queue)] if is_there else [])
    diagram = draw(topology(busy_wait.KIND, params), seen(busy_wait.definitions(params) | work))
    (forwarder,) = busy_wait.forwarders(params)
    onward = f"queue {forwarder.onward}" + ("" if is_there else " (missing)")
    reported = {(fact.source, fact.target) for fact in diagram.facts if "forwarder" in fact.what}
    assert reported == {
        (f"queue {forwarder.queue}", onward),
        (f"queue {forwarder.queue}", f"queue {forwarder.back}"),
    }
    assert diagram.note == FORWARDER_NOTE


def test_hold_queues_are_drawn_as_they_exist_with_the_way_on() -> None:
    params = HoldParams("orders", ("created",), ())
    diagram = draw(topology(hold_queues.KIND, params), seen(held(params, 3)))
    ends = {(fact.source, fact.target) for fact in diagram.facts}
    assert ends == {
        ("exchange orders", "queue work"),
        *((f"queue delay.{n}000.orders.created", "exchange orders") for n in (1, 2, 3)),
    }
    assert diagram.note == ""


def test_of_many_hold_queues_the_shortest_are_drawn_and_the_others_counted() -> None:
    params = HoldParams("orders", ("created",), ())
    diagram = draw(topology(hold_queues.KIND, params), seen(held(params, MOST_MEMBERS + 5)))
    sources = {fact.source for fact in diagram.facts}
    assert f"queue delay.{MOST_MEMBERS}000.orders.created" in sources
    assert f"queue delay.{MOST_MEMBERS + 1}000.orders.created" not in sources
    assert diagram.note.startswith("The diagram omits 5 queues with longer delays.")


def test_hold_queues_that_nobody_uses_are_shown_by_an_example() -> None:
    params = HoldParams("orders", ("created",), ())
    diagram = draw(topology(hold_queues.KIND, params), seen(held(params, 0)))
    assert diagram.note.startswith("Hold queues are temporary")
    assert "queue delay.10000.orders.created" in {fact.source for fact in diagram.facts}
    assert "missing" not in diagram.svg
