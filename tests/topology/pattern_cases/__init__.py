"""The patterns put to the laws: a case for each, in a file of its own."""

from __future__ import annotations

from tests.topology.pattern_cases import (
    busy_wait,
    delay_levels,
    delay_queues,
    delayed_exchange,
    hold_queues,
    quorum_retry,
    retry_ladder,
    retry_loop,
    retry_pair,
)
from tests.topology.pattern_cases.case import Case

CASES: dict[str, Case] = {
    "retry_pair": retry_pair.CASE,
    "delay_levels": delay_levels.CASE,
    "hold_queues": hold_queues.CASE,
    "retry_loop": retry_loop.CASE,
    "retry_ladder": retry_ladder.CASE,
    "quorum_retry": quorum_retry.CASE,
    "busy_wait": busy_wait.CASE,
    "delay_queues": delay_queues.CASE,
    "delayed_exchange": delayed_exchange.CASE,
}
