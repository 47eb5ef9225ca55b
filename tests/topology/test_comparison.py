"""All patterns are compared by the same measure."""

from __future__ import annotations

from topology.patterns.comparison import DELAYS, list_costs
from topology.patterns.table import list_created


def test_the_number_of_retries_of_a_ladder_is_a_choice() -> None:
    costs = {one.kind: one.retries for one in list_costs(DELAYS)}
    assert costs["retry_ladder"] == "one for each delay you choose, then parked"


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
    assert costs["delay_levels"].title == "Delay levels, quorum queues"
    assert all(one.delays and one.retries and one.hazards for one in costs.values())
