"""The one table of patterns, and that of all kinds of topologies."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.chain.pattern import delay_chain, retry_chain
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.delayed_exchange.pattern import delayed_exchange
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.patterns.retry_ladder.pattern import retry_ladder
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair.pattern import retry_pair

# Patterns in the order of recognition: the more particular structure first, for a part of it may
# look like a later one.
_ALL: tuple[Pattern, ...] = (
    delay_levels,
    retry_ladder,
    busy_wait,
    delayed_exchange,
    quorum_retry,
    hold_queues,
    retry_pair,
    retry_loop,
    delay_queues,
)
PATTERNS: dict[str, Pattern] = {pattern.KIND: pattern for pattern in _ALL}
# All kinds: patterns, and adopted chains, which Delayboard does not provision.
KINDS: Mapping[str, Pattern] = ChainMap(
    PATTERNS, {chain.KIND: chain for chain in (delay_chain, retry_chain)}
)


def list_created() -> dict[str, Pattern]:
    """The patterns that Delayboard creates."""
    return {kind: pattern for kind, pattern in PATTERNS.items() if pattern.IS_CREATED}


def find_retry_kinds() -> list[str]:
    """The kinds in which failed messages wait for another attempt."""
    return [kind for kind, pattern in KINDS.items() if pattern.ATTEMPTS_COUNTED_BY]
