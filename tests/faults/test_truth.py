"""What counts as a contradiction between a list and what was sent."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.truth import Listing, SentMessage, contradictions, due_errors

MESSAGES = {"m": SentMessage(delay=10, begun=100.0, confirmed=100.5, arrived=110.5)}


@pytest.mark.parametrize(
    ("at", "shown", "wrong"),
    [
        (101, [], []),
        (103, [], ["m is missing 2.50 s after it was sent"]),
        (103, ["m"], []),
        (103, ["m", "m"], ["m is shown 2 times"]),
        (103, ["m", "n"], ["n was never sent"]),
        (110.2, [], []),
        (112, ["m"], []),
        (113, ["m"], ["m is shown 2.50 s after it arrived"]),
        (113, [], []),
    ],
)
def test_a_look_contradicts_what_was_sent(at: float, shown: list[str], wrong: list[str]) -> None:
    look = Listing(at, at + 0.01, Counter(shown))
    assert contradictions(MESSAGES, [look], within=2) == wrong
    assert not contradictions(MESSAGES, [look], within=2, blind=[(at - 1, at)])


@pytest.mark.parametrize(("due", "error"), [(109.75, 0.25), (110.25, 0.0), (110.75, 0.25)])
def test_a_due_time_may_be_the_delay_after_any_moment_of_the_publish(
    due: float, error: float
) -> None:
    assert due_errors(MESSAGES, {"m": due}) == {"m": error}
