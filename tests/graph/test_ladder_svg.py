from __future__ import annotations

import re
from datetime import timedelta
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tests.graph.pictures import HOSTILE, LADDER, LONG, bound, ladder_of, level_set, seen
from tests.graph.test_svg import SVG, Reader
from topology.definitions import Definitions
from topology.graph.ladder import Ladder, Levels, build_ladder
from topology.graph.live_values import snapshot_marks
from topology.snapshot import QueueNumbers, Snapshot
from topology.views.diagram import draw_ladder


def drawn(found: Snapshot | Definitions, levels: Levels = LADDER) -> str:
    return draw_ladder(laddered(found, levels), "Ladder", "one")


def laddered(found: Snapshot | Definitions, levels: Levels = LADDER) -> Ladder:
    return build_ladder(levels, found, level_set(levels))


def numbered(definitions: Definitions) -> Snapshot:
    return seen(
        definitions,
        {queue.name: QueueNumbers(1204, 1200, 0, 0, 0.4) for queue in definitions.queues},
    )


def height(picture: str) -> float:
    return float(ElementTree.fromstring(picture).get("height") or 0)


def test_28_levels_fit_a_laptop_screen() -> None:
    full = level_set() | bound(*(f"end{number}" for number in range(40)))
    root = ElementTree.fromstring(drawn(numbered(full)))
    assert float(root.get("width") or 0) <= 720
    assert float(root.get("height") or 0) <= 740
    assert len([part for part in root.iter() if part.get("class") == "rung"]) == 28


@pytest.mark.parametrize("count", [1, 2, 8, 10, 11, 20, 21, 28])
def test_rungs_of_any_number_of_levels_stand_apart_and_inside(count: int) -> None:
    levels = ladder_of(count, timedelta(milliseconds=50))
    picture = drawn(numbered(level_set(levels)), levels)
    root = ElementTree.fromstring(picture)
    rungs = [group for group in root.iter(f"{SVG}g") if group.get("class") == "rung"]
    shapes = [shape for group in rungs if (shape := group.find(f"{SVG}rect")) is not None]
    tops = [
        float(re.findall(r"[\d.]+", group.get("transform", ""))[1]) + float(shape.get("y") or 0)
        for group, shape in zip(rungs, shapes, strict=True)
    ]
    high = float(shapes[0].get("height") or 0)
    assert len(tops) == count
    assert all(lower - upper > high + 2 for upper, lower in pairwise(tops))
    assert tops[-1] + high < height(picture)


@pytest.mark.parametrize("name", ["orders", HOSTILE, LONG, "日本", "a b", "]]>", "x\ry\tz", ""])
def test_any_name_gives_well_formed_xml_with_the_same_tags(name: str) -> None:
    def tags(text: str) -> set[str]:
        levels = Levels([f"{text}{level}" for level in range(3)], f"{text}d", timedelta(seconds=1))
        ends = bound(f"{text}!", levels=levels)
        root = ElementTree.fromstring(drawn(numbered(level_set(levels) | ends), levels))
        return {element.tag for element in root.iter()}

    assert tags(name) == tags("plain")


@pytest.mark.parametrize("name", ["orders", HOSTILE, LONG, 'a"b'])
def test_queues_have_the_keys_of_the_snapshot(name: str) -> None:
    levels = Levels([f"{name}{level}" for level in range(3)], f"{name}d", timedelta(seconds=1))
    snapshot = numbered(level_set(levels) | bound(f"{name}!", levels=levels))
    read = Reader(drawn(snapshot, levels))
    assert read.values("data-key") == set(snapshot_marks(snapshot))


def test_nothing_is_styled_or_scripted_inline() -> None:
    levels = Levels([HOSTILE], "d", timedelta(seconds=1))
    read = Reader(drawn(numbered(level_set(levels)), levels))
    names = {name for _, attributes in read.tags for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    assert not {tag for tag, _ in read.tags if tag in ("script", "style", "foreignobject")}


def test_a_screen_reader_is_told_what_is_not_empty() -> None:
    numbers = {name: QueueNumbers(0, 0, 0, 0) for name in LADDER.names}
    numbers[LADDER.names[3]] = QueueNumbers(49, 4, 0, 0)
    root = ElementTree.fromstring(drawn(seen(level_set() | bound("orders"), numbers)))
    texts = {element.get("id"): element.text or "" for element in root.iter()}
    assert root.get("role") == "img"
    assert texts["one-title"] == "Ladder"
    assert "28 levels, from 4y 93d at the top down to 1s" in texts["one-text"]
    assert "Level 3, queue shop.delay-level-03: waits 8s (8s)" in texts["one-text"]
    assert "stuck: no route to a queue" in texts["one-text"]
    assert "Level 4" not in texts["one-text"]


@pytest.mark.parametrize(
    ("rate", "beat"), [(None, ""), (0.0, "0"), (0.4, "1"), (12.0, "2"), (240.0, "3")]
)
def test_a_dot_beats_with_the_rate(rate: float | None, beat: str) -> None:
    name = LADDER.names[3]
    read = Reader(drawn(seen(level_set(), {name: QueueNumbers(1, 1, 0, 0, rate)})))
    dots = [a["data-pace"] for _, a in read.tags if a.get("class") == "pulse"]
    assert [beat for beat in dots if beat] == [beat][: bool(beat)]


@pytest.mark.parametrize(
    ("numbers", "state"),
    [
        (QueueNumbers(49, 4, 0, 0), "stuck"),
        (QueueNumbers(4, 4, 0, 1), "taken"),
        (QueueNumbers(state="down"), "down"),
        (QueueNumbers(), "unknown"),
        (QueueNumbers(0, 0, 0, 0), "empty"),
        (QueueNumbers(4, 4, 0, 0), "waiting"),
    ],
)
def test_a_rung_is_marked_by_its_state(numbers: QueueNumbers, state: str) -> None:
    read = Reader(drawn(seen(level_set(), {LADDER.names[3]: numbers})))
    key = f"queue/{LADDER.names[3]}"
    assert [a["data-state"] for _, a in read.tags if a.get("data-key") == key] == [state]


def test_what_is_missing_is_said_and_stays() -> None:
    name = LADDER.names[3]
    picture = drawn(numbered(level_set().without([("queue", name)])))
    assert picture.count("missing in the broker") == 1
    assert "no exchange" in drawn(numbered(level_set().without([("exchange", name)])))


def test_a_plan_shows_where_each_level_leads_and_no_numbers() -> None:
    plan = drawn(level_set())
    assert "data-state" not in plan
    assert plan.count("then on to level") == 27
    assert "then to delivery" in plan


def test_before_it_is_applied_it_is_not_28_times_in_trouble() -> None:
    planned = drawn(seen(Definitions()))
    assert "missing in the broker" not in planned
    assert planned.count("sign-warn") == 1


@pytest.mark.parametrize(("count", "shown", "more"), [(1, 1, 0), (5, 5, 0), (6, 4, 2), (40, 4, 36)])
def test_of_many_destinations_the_first_are_drawn_and_the_others_counted(
    count: int, shown: int, more: int
) -> None:
    ends = bound(*(f"end{number:02}" for number in range(count)))
    picture = drawn(numbered(level_set() | ends))
    assert len(re.findall(r'class="node end-queue', picture)) == shown
    assert ("more, see the table" in picture) == bool(more)
    assert not more or f"and {more} more" in picture


def test_a_destination_in_trouble_is_drawn_before_the_others() -> None:
    ends = bound(*(f"end{number:02}" for number in range(9))) | bound("zzz", in_queues=False)
    assert "no queue bound" in drawn(numbered(level_set() | ends))


def test_without_a_destination_it_says_that_nothing_arrives() -> None:
    assert "No destination is bound" in drawn(numbered(level_set()))


def test_ids_are_named_after_the_picture_so_that_two_fit_on_a_page() -> None:
    one, two = (Reader(draw_ladder(laddered(level_set()), "L", name)).values("id") for name in "ab")
    assert one
    assert not one & two
