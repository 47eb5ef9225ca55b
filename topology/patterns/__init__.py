"""The ways to delay: one pure file each, and the one table of them."""

from __future__ import annotations

from typing import cast

from topology.patterns import (
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
from topology.patterns.pattern import Pattern

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
