from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest

from tests.graph.pictures import HOSTILE, LONG, delay_queue, pair, seen
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.graph.build import build, with_badges
from topology.graph.dot import LayoutError, arrange, arrange_by_dot
from topology.graph.geometry import BADGE_ROOM, Box, Direction, Layout, arrange_rows
from topology.snapshot import QueueNumbers

FAN = Definitions.of(
    [
        *pair(),
        Exchange("events", "topic"),
        *(Queue(f"q{number}") for number in range(6)),
        *(Binding("events", f"q{number}", "#") for number in range(6)),
        Binding("events", "orders", "orders.#", destination_is_queue=False),
        Queue("full", arguments=Arguments({"x-dead-letter-exchange": "gone"})),
        delay_queue("wait", "q1", 60),
        Queue("self", arguments=Arguments({"x-dead-letter-exchange": "events"})),
        Binding("events", "self", "again"),
    ]
)
EVERYTHING = FAN | pair(HOSTILE) | pair(LONG)


def overlap(one: Box, other: Box) -> bool:
    return (
        abs(one.x - other.x) < (one.width + other.width) / 2 - 0.1
        and abs(one.y - other.y) < (one.height + other.height) / 2 - 0.1
    )


def assert_sound(layout: Layout, nodes: int, edges: int) -> None:
    assert len(layout.boxes) == nodes
    assert len(layout.lines) == edges
    assert not any(overlap(one, other) for one, other in combinations(layout.boxes, 2))
    for box in layout.boxes:
        assert box.left >= 0
        assert box.top >= 0
        assert box.left + box.width <= layout.width + 0.1
        assert box.top + box.height <= layout.height + 0.1
    for line in layout.lines:
        assert len(line.points) % 3 == 1


def test_a_retry_pair_reads_from_where_new_work_comes_in() -> None:
    layout = arrange(build(seen(pair(), {"orders": QueueNumbers(messages=1)})))
    height = {box.node.id: box.y for box in layout.boxes}
    assert_sound(layout, 4, 4)
    assert height["exchange/orders"] < height["queue/orders"] < height["exchange/orders-retry"]
    assert height["exchange/orders-retry"] < height["queue/orders-retry"]
    assert layout.note == ""


def test_a_retry_pair_of_short_names_fits_a_phone_almost_at_full_size() -> None:
    layout = arrange(build(seen(pair())))
    assert layout.width < 430


@pytest.mark.parametrize("direction", ["down", "right", None])
@pytest.mark.parametrize("objects", [EVERYTHING, FAN, Definitions(), Definitions.of([Queue("q")])])
def test_dot_places_everything_without_overlaps(
    direction: Direction | None, objects: Definitions
) -> None:
    graph = build(objects)
    layout = arrange_by_dot(graph, direction=direction) if direction else arrange(graph)
    assert_sound(layout, len(graph.nodes), len(graph.edges))
    assert layout.note == ""


@pytest.mark.parametrize("objects", [EVERYTHING, FAN, pair(), Definitions()])
def test_rows_place_everything_without_overlaps(objects: Definitions) -> None:
    nodes = build(objects).nodes
    assert_sound(arrange_rows(nodes), len(nodes), 0)


def test_a_loop_reads_from_where_work_comes_in_also_when_dot_draws_it() -> None:
    inlet: list[BrokerObject] = [
        Exchange("zz"),
        Binding("zz", "orders", "#", destination_is_queue=False),
    ]
    layout = arrange_by_dot(build(pair() | Definitions.of(inlet)), direction="down")
    height = {box.node.id: box.y for box in layout.boxes}
    assert height["exchange/zz"] < height["exchange/orders"] < height["queue/orders"]
    assert height["queue/orders"] < height["exchange/orders-retry"] < height["queue/orders-retry"]


def test_without_dot_the_error_says_so() -> None:
    with pytest.raises(LayoutError, match="Graphviz is not installed"):
        arrange_by_dot(build(FAN), program="no-such-dot")


def script(folder: Path, text: str) -> str:
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("exec sleep 30", "did not finish within 0.2 seconds"),
        ("exit 3", "Graphviz failed"),
        ("echo nonsense", "unreadable"),
        ("echo '{}'", "unreadable"),
    ],
)
def test_a_dot_that_misbehaves_is_an_error_with_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(LayoutError, match=sentence):
        arrange_by_dot(build(FAN), seconds=0.2, program=script(tmp_path, text))


def test_a_picture_is_there_even_when_dot_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep)
    graph = build(FAN)
    layout = arrange(graph)
    assert_sound(layout, len(graph.nodes), 0)
    assert layout.note == (
        "The program “dot” of Graphviz is not installed. "
        "The diagram omits arrows. The table lists the connections."
    )


def holds(count: int, ends: int = 1) -> Definitions:
    objects: list[BrokerObject] = [Exchange("orders", "topic")]
    for number in range(count):
        wait = delay_queue(f"delay.{number}", "created", 100 - number)
        dies = Arguments({**wait.arguments, "x-dead-letter-exchange": "orders"})
        objects.append(Queue(wait.name, arguments=dies))
    for number in range(ends):
        objects += [Queue(f"work{number}"), Binding("orders", f"work{number}", "created")]
    return Definitions.of(objects)


@pytest.mark.parametrize(("count", "ends"), [(7, 1), (8, 0), (9, 4), (30, 1)])
def test_many_queues_that_die_into_one_exchange_stand_in_columns(count: int, ends: int) -> None:
    graph = build(holds(count, ends))
    layout = arrange(graph)
    assert_sound(layout, count + ends + 1, count + ends)
    assert layout.width < 1000
    assert layout.height < 1200
    height = {box.node.name: box.y for box in layout.boxes}
    assert height[f"delay.{count - 1}"] < height["delay.0"], "the shortest wait is on top"


@pytest.mark.parametrize("objects", [[Queue("work")], list(pair()), list(FAN)])
def test_a_badge_on_the_uppermost_box_stands_inside_the_picture(
    objects: list[BrokerObject],
) -> None:
    graph = build(Definitions.of(objects))
    plain = arrange(graph)
    layout = arrange(with_badges(graph, {node.id: "1: at once" for node in graph.nodes}, {}))
    assert_sound(layout, len(graph.nodes), len(graph.edges))
    assert min(box.top for box in layout.boxes) >= BADGE_ROOM
    assert layout.height - plain.height == min(box.top for box in layout.boxes) - min(
        box.top for box in plain.boxes
    )
    for line, before in zip(layout.lines, plain.lines, strict=True):
        assert line.tip[1] - before.tip[1] == pytest.approx(layout.height - plain.height)
