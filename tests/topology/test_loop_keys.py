from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.strategies import keys, patterns
from tests.topology.walks import topic_matches
from topology.patterns.retry_loop.keys import key_for, key_for_none, matches, overlap


@given(patterns, st.one_of(keys, patterns))
def test_a_pattern_matches_what_a_topic_exchange_takes(pattern: str, key: str) -> None:
    assert matches(pattern, key) == topic_matches(pattern, key)


@given(patterns, patterns, keys)
def test_patterns_that_a_key_matches_both_overlap(one: str, other: str, key: str) -> None:
    if topic_matches(one, key) and topic_matches(other, key):
        assert overlap(one, other)
    assert overlap(one, other) == overlap(other, one)


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        ("a.#", "a", True),
        ("a.#", "#.b", True),
        ("a.*", "*.b", True),
        ("a.*", "a", False),
        ("a.#", "b.#", False),
        ("#", "", True),
        ("*", "", False),
        ("a.#.c", "a.b.*", True),
        ("a.#.c", "a.b", False),
    ],
)
def test_whether_two_patterns_share_a_key(one: str, other: str, do: bool) -> None:
    assert overlap(one, other) is do


@given(patterns)
def test_a_key_for_a_pattern_is_matched_by_it_and_no_longer(pattern: str) -> None:
    assert topic_matches(pattern, key_for(pattern))
    assert len(key_for(pattern)) <= len(pattern)


@given(st.lists(patterns, max_size=4))
def test_a_key_for_none_is_matched_by_none(found: list[str]) -> None:
    key = key_for_none(found)
    if key is None:
        assert all(any(topic_matches(one, "o" + ".o" * n) for one in found) for n in range(9))
    else:
        assert not any(topic_matches(one, key) for one in found)


@pytest.mark.parametrize("found", [["#"], ["", "*.#"], ["", "*", "*.*.#"]])
def test_patterns_that_take_all_leave_no_key(found: list[str]) -> None:
    assert key_for_none(found) is None
