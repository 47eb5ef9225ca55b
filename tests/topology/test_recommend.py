"""Every recommendation is a pattern that Delayboard creates, with values that its form accepts."""

from __future__ import annotations

from itertools import product

from topology.patterns.recommend import (
    CLIENTS,
    DELAYS,
    PURPOSES,
    Advice,
    describe_recording,
    recommend,
)
from topology.patterns.table import list_created


def typed(advice: Advice) -> dict[str, str]:
    """The values, and the names that a person types."""
    names = ("name", "queue") if advice.values.get("preset") != "own" else ("prefix",)
    return {**dict.fromkeys(names, "work"), **advice.values}


def test_each_recommendation_can_be_planned() -> None:
    kinds = set()
    for answers in product(PURPOSES, DELAYS, CLIENTS):
        advice = recommend(*answers)
        pattern = list_created()[advice.kind]
        first = {field.name: field.initial for field in pattern.FIELDS}
        pattern.parse({**first, **dict.fromkeys(("name", "queue", "prefix"), ""), **typed(advice)})
        kinds.add(advice.kind)
    assert kinds == {"delay_levels", "delay_queues", "retry_ladder"}


def test_what_is_observed_of_each_pattern_is_said_before_it_is_applied() -> None:
    said = {
        kind: [words.partition(" ")[0] for _, words in describe_recording(one, one.EXAMPLE)]
        for kind, one in list_created().items()
    }
    assert said["retry_ladder"] == ["by", "by"]
    assert said["quorum_retry"] == ["not", "by"]
    assert said["delay_levels"] == ["by", "only"]
    assert said["delay_queues"] == ["those", "only"]
