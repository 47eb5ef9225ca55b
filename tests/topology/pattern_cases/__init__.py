"""The patterns put to the laws: a case for each, in a file of its own."""

from __future__ import annotations

from tests.topology.pattern_cases import delay_levels, hold_queues, retry_pair
from tests.topology.pattern_cases.case import Case

CASES: dict[str, Case] = {
    "retry_pair": retry_pair.CASE,
    "delay_levels": delay_levels.CASE,
    "hold_queues": hold_queues.CASE,
}
