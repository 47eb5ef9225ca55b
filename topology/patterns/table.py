"""The ways to delay: one pure file each, and the one table of them."""

from __future__ import annotations

from typing import cast

from topology.patterns.busy_wait import pattern as busy_wait
from topology.patterns.delay_levels import pattern as delay_levels
from topology.patterns.delay_queues import pattern as delay_queues
from topology.patterns.delayed_exchange import pattern as delayed_exchange
from topology.patterns.hold_queues import pattern as hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.quorum_retry import pattern as quorum_retry
from topology.patterns.retry_ladder import pattern as retry_ladder
from topology.patterns.retry_loop import pattern as retry_loop
from topology.patterns.retry_pair import pattern as retry_pair

PATTERNS: dict[str, Pattern] = {
    retry_pair.KIND: cast(Pattern, retry_pair),
    delay_levels.KIND: cast(Pattern, delay_levels),
    hold_queues.KIND: cast(Pattern, hold_queues),
    retry_loop.KIND: cast(Pattern, retry_loop),
    retry_ladder.KIND: cast(Pattern, retry_ladder),
    quorum_retry.KIND: cast(Pattern, quorum_retry),
    busy_wait.KIND: cast(Pattern, busy_wait),
    delay_queues.KIND: cast(Pattern, delay_queues),
    delayed_exchange.KIND: cast(Pattern, delayed_exchange),
}
