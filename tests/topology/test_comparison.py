"""All patterns are compared by the same measure."""

from __future__ import annotations

from datetime import timedelta

from topology.patterns.comparison import (
    DELAYS,
    describe_cost,
    list_costs,
)
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.hold_queues.params import Params as Holds
from topology.patterns.table import PATTERNS, list_created

OLD = (3, 10, 8)
HOUR = timedelta(hours=1)


def test_the_number_of_retries_of_a_ladder_is_a_choice_until_it_has_its_delays() -> None:
    costs = {one.kind: one.retries for one in list_costs(DELAYS)}
    assert costs["retry_ladder"] == "one for each delay you choose, then parked"
    ladder = PATTERNS["retry_ladder"].EXAMPLE
    assert describe_cost("retry_ladder", ladder, max(DELAYS)).retries == "3, then parked"


def test_all_patterns_are_compared_for_the_same_delays() -> None:
    costs = {one.kind: one for one in list_costs(DELAYS)}
    assert list(costs) == list(list_created())
    # 10m is 1001011000 in binary: four levels and the queue behind them; 60 laps of 10 s, of two
    # writes each, and the last; one delay queue and the work queue.
    writes = {kind: one.writes for kind, one in costs.items()}
    assert (writes["delay_levels"], writes["busy_wait"], writes["delay_queues"]) == (5, 121, 2)
    assert (writes["quorum_retry"], writes["retry_pair"]) == (1, None)
    assert costs["delay_queues"].queues == "3"
    assert costs["hold_queues"].queues == "3 for each destination"
    assert costs["delay_levels"].delays == "any, in steps of 1s"
    assert all(one.delays and one.retries and one.hazards for one in costs.values())


def test_hold_queues_for_any_delay_need_one_for_each() -> None:
    own = describe_cost("hold_queues", Holds("orders"), HOUR)
    assert (own.queues, own.writes) == ("1 for each delay and destination", 2)


def test_a_comparison_names_what_the_broker_cannot_have() -> None:
    old = {one.kind: one.obstacle for one in list_costs([HOUR], OLD)}
    assert "does not delay retries" in old["quorum_retry"]
    assert not old["retry_pair"]


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
