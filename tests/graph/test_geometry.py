from __future__ import annotations

import pytest

from tests.graph.pictures import HOSTILE, LONG
from topology.content.text import visible
from topology.graph.build import Node
from topology.graph.edges import Edge
from topology.graph.geometry import (
    LABEL_CELLS,
    NAME_CELLS,
    box_of,
    cells,
    label_of,
    name_lines,
    shorten,
)


def test_wide_signs_count_twice_and_combining_ones_not_at_all() -> None:
    assert (cells("abc"), cells("日本"), cells("e\u0301")) == (3, 4, 1)


@pytest.mark.parametrize("text", [LONG, HOSTILE, "日本語" * 30, "a" * 255, "e\u0301" * 100])
@pytest.mark.parametrize("limit", [5, 10, 24])
def test_a_shortened_text_fits_and_keeps_both_ends(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert cells(short) <= limit
    head, _, tail = short.partition("…")
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_text_that_fits_is_left_alone() -> None:
    assert shorten("orders", 6) == "orders"


@pytest.mark.parametrize("name", [LONG, HOSTILE, "日本語" * 30, "x" * 44, "x" * 45, "", "日" * 22])
def test_a_name_takes_at_most_two_lines_that_fit(name: str) -> None:
    lines = name_lines(name)
    assert 1 <= len(lines) <= 2
    assert all(cells(line) <= NAME_CELLS for line in lines)


def test_a_name_is_broken_after_a_separator() -> None:
    assert name_lines("shop.invoices.created-retry") == ("shop.invoices.created-", "retry")


def test_controls_and_direction_overrides_are_made_visible() -> None:
    assert visible("a\nb\u202ec\x7fd\ud800") == "a␊b\ufffdc\ufffdd\ufffd"
    assert visible("日本 é") == "日本 é"


def test_many_keys_on_an_arrow_are_the_first_and_how_many_more() -> None:
    keys = ("order.cancelled.by.customer", "order.created", "order.paid")
    edge = Edge("a", "b", "binding", "binds to", keys, ", ".join(keys))
    label = label_of(edge)
    assert label.startswith("order.")
    assert label.endswith(" +2")
    assert cells(label) <= LABEL_CELLS


def test_a_longer_name_makes_a_wider_box() -> None:
    short = box_of(Node("queue/a", "queue", "a"))
    long = box_of(Node("queue/b", "queue", "b" * 22))
    assert long.width > short.width
    assert box_of(Node("queue/c", "queue", "c" * 255)).width == long.width
