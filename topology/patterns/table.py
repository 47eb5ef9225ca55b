"""The one table of patterns."""

from __future__ import annotations

from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.delayed_exchange.pattern import delayed_exchange
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.patterns.retry_ladder.pattern import retry_ladder
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair.pattern import retry_pair

_ALL: tuple[Pattern, ...] = (
    retry_pair,
    delay_levels,
    hold_queues,
    retry_loop,
    retry_ladder,
    quorum_retry,
    busy_wait,
    delay_queues,
    delayed_exchange,
)
PATTERNS = {pattern.KIND: pattern for pattern in _ALL}
