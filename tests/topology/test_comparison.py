"""Which pattern is better than another, why, and that all are compared by the same measure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from topology.patterns.comparison import (
    DELAYS,
    delays_of,
    describe_cost,
    find_better,
    list_costs,
)
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.hold_queues.params import Params as Holds
from topology.patterns.table import PATTERNS

OLD, MIDDLE, NEW = (3, 10, 8), (4, 0, 5), (4, 3, 6)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("kind", "version", "better"),
    [
        ("retry_loop", NEW, "quorum_retry"),
        ("retry_pair", NEW, "quorum_retry"),
        ("retry_ladder", NEW, "quorum_retry"),
        ("retry_loop", MIDDLE, "retry_ladder"),
        ("retry_pair", (4, 3, 0), "retry_ladder"),
        ("retry_ladder", MIDDLE, ""),
        ("delay_queues", NEW, "quorum_retry"),
        ("delay_queues", OLD, "retry_ladder"),
        ("delayed_exchange", OLD, "delay_levels"),
        ("delayed_exchange", NEW, "delay_levels"),
        ("busy_wait", NEW, "delay_levels"),
        ("quorum_retry", NEW, ""),
        ("delay_levels", NEW, ""),
        ("hold_queues", NEW, ""),
    ],
)
def test_each_pattern_has_its_verdict_by_version_with_the_reason(
    kind: str, version: tuple[int, ...], better: str
) -> None:
    verdict = find_better(kind, PATTERNS[kind].EXAMPLE, version)
    assert verdict.kind == better
    assert verdict.why.endswith(".")


@pytest.mark.parametrize("kind", ["retry_loop", "retry_pair", "delay_queues"])
def test_a_topology_without_a_limit_of_retries_has_a_better_pattern_with_one(kind: str) -> None:
    params = PATTERNS[kind].EXAMPLE
    own = describe_cost(kind, params, max(delays_of(kind, params)))
    costs = {one.kind: one.retries for one in list_costs(DELAYS)}
    assert own.retries == "no limit: only the consumer ends them"
    for version in (OLD, MIDDLE, NEW):
        verdict = find_better(kind, params, version)
        assert costs[verdict.kind].endswith("then parked")


def test_the_number_of_retries_of_a_ladder_is_a_choice_until_it_has_its_delays() -> None:
    costs = {one.kind: one.retries for one in list_costs(DELAYS)}
    assert costs["retry_ladder"] == "one for each delay you choose, then parked"
    ladder = PATTERNS["retry_ladder"].EXAMPLE
    assert describe_cost("retry_ladder", ladder, max(DELAYS)).retries == "3, then parked"


def test_hold_queues_for_any_delay_and_classic_levels_are_advised_to_be_quorum_levels() -> None:
    assert find_better("hold_queues", Holds("orders"), NEW).kind == "delay_levels"
    assert find_better("delay_levels", Levels("nsb-v1"), OLD).kind == "delay_levels"


def test_all_patterns_are_compared_for_the_same_delays() -> None:
    costs = {one.kind: one for one in list_costs(DELAYS)}
    assert list(costs) == list(PATTERNS)
    # 10m is 1001011000 in binary: four levels and the queue behind them; 60 laps of 10 s, of two
    # writes each, and the last; one delay queue and the work queue.
    writes = {kind: one.writes for kind, one in costs.items()}
    assert (writes["delay_levels"], writes["busy_wait"], writes["delay_queues"]) == (5, 121, 2)
    assert (writes["quorum_retry"], writes["retry_pair"]) == (1, None)
    assert costs["delay_queues"].queues == "3"
    assert costs["hold_queues"].queues == "3 for each destination"
    assert costs["delay_levels"].delays == "any, in steps of 1s"
    assert all(one.delays and one.retries and one.hazards for one in costs.values())


def test_a_topology_for_any_delay_is_compared_for_an_hour() -> None:
    assert delays_of("hold_queues", Holds("orders")) == (HOUR,)
    own = describe_cost("hold_queues", Holds("orders"), HOUR)
    assert (own.queues, own.writes) == ("1 for each delay and destination", 2)


def test_a_comparison_names_what_the_broker_cannot_have() -> None:
    old = {one.kind: one.obstacle for one in list_costs([HOUR], OLD)}
    assert "does not delay retries" in old["quorum_retry"]
    assert not old["retry_pair"]


@pytest.mark.parametrize(("version", "words"), [(OLD, "is archived"), (NEW, "does not run")])
def test_the_plugin_says_what_became_of_it(version: tuple[int, ...], words: str) -> None:
    verdict = find_better("delayed_exchange", PATTERNS["delayed_exchange"].EXAMPLE, version)
    assert words in verdict.why


def test_classic_and_quorum_levels_have_names_and_hazards_of_their_own() -> None:
    classic, quorum = (
        describe_cost("delay_levels", Levels(preset), max(DELAYS))
        for preset in ("nsb-v1", "nsb-v2")
    )
    assert (classic.title, quorum.title) == (
        "Delay levels, classic queues",
        "Delay levels, quorum queues",
    )
    assert "at most once" in classic.hazards[0]
    assert "at-least-once" in quorum.hazards[0]
    assert classic.hazards[1:] == quorum.hazards[1:]
