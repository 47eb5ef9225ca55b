"""The order in which brokers keep deaths, and the rule by which they cut rings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.routing.cycle import (
    Entry,
    count_of,
    dead_letter_headers,
    is_cycle,
    published_deaths,
    record,
)

OLD, NEW = (3, 10, 8), (4, 3, 6)

deaths = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["expired", "rejected"])), max_size=12
)


def recorded(died: list[tuple[str, str]], version: tuple[int, ...]) -> tuple[Entry, ...]:
    entries: tuple[Entry, ...] = ()
    for queue, reason in died:
        entries = record(entries, queue, reason, version)
    return entries


@pytest.mark.parametrize(
    ("entries", "cut"),
    [
        ([], False),
        ([("q", "expired")], True),
        ([("other", "expired")], False),
        ([("other", "expired"), ("q", "expired")], True),
        ([("other", "expired"), ("q", "rejected")], False),
        ([("other", "rejected"), ("q", "expired")], False),
        ([("other", "expired"), ("third", "rejected"), ("q", "expired")], False),
        ([("other", "maxlen"), ("q", "delivery_limit")], True),
        ([("q", "expired"), ("q", "rejected")], True),
    ],
)
def test_only_a_rejection_breaks_the_cycle_rule(entries: list[tuple[str, str]], cut: bool) -> None:
    assert is_cycle(tuple(Entry(*entry) for entry in entries), "q") == cut


def test_before_4_0_the_rest_of_the_list_is_turned_round_at_each_death() -> None:
    """As seen on 3.10.8: a ladder shows work, rung 1, 2, 3 behind the newest."""
    ladder = [("a", "expired"), ("b", "expired"), ("c", "expired"), ("d", "expired")]
    assert [entry.queue for entry in recorded(ladder, OLD)] == ["d", "b", "a", "c"]
    assert [entry.queue for entry in recorded(ladder, NEW)] == ["d", "c", "b", "a"]


@given(deaths)
def test_every_version_counts_the_same_and_puts_the_newest_first(
    died: list[tuple[str, str]],
) -> None:
    old, new = recorded(died, OLD), recorded(died, NEW)
    assert set(old) == set(new)
    assert sum(entry.count for entry in new) == len(died)
    assert [(entry.queue, entry.reason) for entry in old[:1]] == died[-1:]
    assert all(
        count_of(old, queue, reason) == died.count((queue, reason)) for queue, reason in died
    )


@given(deaths)
def test_from_4_0_on_the_entries_are_in_the_order_of_their_last_deaths(
    died: list[tuple[str, str]],
) -> None:
    latest = list(dict.fromkeys(reversed(died)))
    assert [(entry.queue, entry.reason) for entry in recorded(died, NEW)] == latest


@pytest.mark.parametrize(
    ("header", "entries"),
    [
        (None, ()),
        ("text", ()),
        ([{"queue": "q", "reason": "expired", "count": 3}], (Entry("q", "expired", 3),)),
        ([{"queue": "q", "reason": "expired", "count": "x"}], (Entry("q", "expired", 1),)),
        ([{"reason": "expired"}, "not a table"], (Entry("", "expired", 1),)),
    ],
)
def test_a_published_x_death_is_read_as_far_as_it_can_be(
    header: Any, entries: tuple[Entry, ...]
) -> None:
    assert published_deaths({"x-death": header}) == entries


def test_the_first_death_stays_named_and_from_4_0_on_the_last_one_is_too() -> None:
    once = dead_letter_headers({"k": 1}, "q", "expired", "x", NEW)
    twice = dead_letter_headers(once, "r", "rejected", "y", NEW)
    assert [
        twice[f"x-{at}-death-{what}"]
        for at in ("first", "last")
        for what in ("queue", "reason", "exchange")
    ] == [
        *("q", "expired", "x"),
        *("r", "rejected", "y"),
    ]
    old = dead_letter_headers(
        dead_letter_headers({"k": 1}, "q", "expired", "x", OLD), "r", "rejected", "y", OLD
    )
    assert (old["k"], old["x-first-death-queue"]) == (1, "q")
    assert "x-last-death-queue" not in old


def test_a_published_x_death_hides_the_first_real_one_before_4_0() -> None:
    published: dict[str, Any] = {"x-death": [{"queue": "z"}]}
    assert dead_letter_headers(published, "q", "expired", "x", OLD) == published
    assert dead_letter_headers(published, "q", "expired", "x", NEW)["x-first-death-queue"] == "q"
