"""Which queue or exchange of a route is marked as the broken place."""

from __future__ import annotations

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.findings.find import find
from topology.findings.finding import chain_of
from topology.graph.build import LOST, STUCK, WRONG, broken_places, build, with_badges
from topology.graph.dot import arrange
from topology.graph.svg import draw

WAIT = {"ttl": 1000, "dlx": ""}
STRICT = {
    "type": "quorum",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}
COPIES = [
    Exchange("delays"),
    a_queue("short", **WAIT, key="work"),
    a_queue("long", **WAIT, key="work"),
    a_queue("work"),
    Binding("delays", "short", "k"),
    Binding("delays", "long", "k"),
]


@pytest.mark.parametrize(
    ("rule", "objects", "marked"),
    [
        ("F01", [a_queue("work", dlx="gone")], {"exchange/gone": LOST}),
        ("F02", [Exchange("x"), a_queue("work", dlx="x", key="k")], {"exchange/x": LOST}),
        (
            "F04",
            [a_queue("a", **WAIT, key="b"), a_queue("b", **WAIT, key="a")],
            {"queue/b": LOST},
        ),
        ("F15", [a_queue("wait", **WAIT, key="gone", **STRICT)], {"queue/wait": STUCK}),
        ("F17", COPIES, {"queue/short": WRONG, "queue/long": WRONG}),
        ("F23", [a_queue("work", dlx="", key="work")], {"queue/work": WRONG}),
    ],
)
def test_the_broken_place_of_a_finding_is_marked(
    rule: str, objects: list[BrokerObject], marked: dict[str, str]
) -> None:
    snapshot = a_snapshot(Definitions.of(objects))
    one = next(found for found in find(snapshot) if found.rule.id == rule)
    chain = chain_of(one, snapshot)
    assert chain is not None
    found = broken_places(chain.walk, snapshot.definitions, one.objects)
    assert found == marked
    svg = draw(arrange(with_badges(build(snapshot), {}, found)), title="t", id="i")
    assert svg.count('class="broken"') == len(marked)
