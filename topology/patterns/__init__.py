"""The ways to delay: one pure file each, and the one table of them."""

from __future__ import annotations

from typing import cast

from topology.patterns import delay_levels, hold_queues, retry_pair
from topology.patterns.pattern import Pattern

PATTERNS: dict[str, Pattern] = {
    retry_pair.KIND: cast(Pattern, retry_pair),
    delay_levels.KIND: cast(Pattern, delay_levels),
    hold_queues.KIND: cast(Pattern, hold_queues),
}
