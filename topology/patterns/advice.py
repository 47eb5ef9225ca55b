"""PURE: which pattern would serve better than a topology's own on its RabbitMQ version, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.delays import format_delay
from topology.patterns.busy_wait.params import KIND as BUSY_WAIT
from topology.patterns.delay_levels.params import KIND as DELAY_LEVELS
from topology.patterns.delay_levels.params import Params as LevelParams
from topology.patterns.delay_queues.params import KIND as DELAY_QUEUES
from topology.patterns.delayed_exchange.params import KIND as DELAYED_EXCHANGE
from topology.patterns.hold_queues.params import KIND as HOLD_QUEUES
from topology.patterns.hold_queues.params import Params as HoldParams
from topology.patterns.pattern import Pattern
from topology.patterns.quorum_retry.params import KIND as QUORUM_RETRY
from topology.patterns.retry_ladder.params import KIND as RETRY_LADDER
from topology.patterns.retry_loop.params import KIND as RETRY_LOOP
from topology.patterns.retry_pair.params import KIND as RETRY_PAIR
from topology.patterns.table import PATTERNS

# The first version that accepts the policy keys of a delayed retry too.
DELAYED_RETRY = (4, 3, 1)
LAST_WITH_PLUGIN = (4, 3)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Cost:
    """What a pattern costs, one sentence or number each; `writes` are for a delay of an hour."""

    title: str
    queues: str
    writes: str
    precision: str
    hazards: Sequence[str]


@dataclass(frozen=True)
class Advice:
    """The better pattern and why, and what both cost."""

    kind: str
    why: str
    own: Cost
    other: Cost


def advise(kind: str, params: Any, version: tuple[int, ...]) -> Advice | None:
    """What would serve better than this use; None where nothing does."""
    found = _find_better(kind, params, version)
    if found is None:
        return None
    other, other_params, why = found
    return Advice(
        other,
        why,
        _describe_cost(PATTERNS[kind], params),
        _describe_cost(PATTERNS[other], other_params),
    )


def _find_better(kind: str, params: Any, version: tuple[int, ...]) -> tuple[str, Any, str] | None:
    levels = LevelParams("own", "delays")
    if kind in (RETRY_LOOP, RETRY_PAIR, RETRY_LADDER, DELAY_QUEUES) and version >= DELAYED_RETRY:
        return (
            QUORUM_RETRY,
            PATTERNS[QUORUM_RETRY].EXAMPLE,
            "A quorum queue of this RabbitMQ version delays the retry itself: one queue, no "
            "exchange, no x-death to count.",
        )
    if kind == DELAY_QUEUES:
        return (
            RETRY_LADDER,
            PATTERNS[RETRY_LADDER].EXAMPLE,
            "When the consumer rejects a message, a retry ladder moves it to the next delay. The "
            "consumer needs no publisher, and a crash between its publish and its ack repeats no "
            "message.",
        )
    if kind == DELAYED_EXCHANGE:
        state = "does not run on this version" if version >= LAST_WITH_PLUGIN else "is archived"
        return (
            DELAY_LEVELS,
            levels,
            f"The plugin {state} and keeps its messages on one node. Delay levels use queues.",
        )
    if kind == HOLD_QUEUES and isinstance(params, HoldParams) and not params.delays:
        return (
            DELAY_LEVELS,
            levels,
            "This topology accepts any delay, so each different delay needs its own queue. Delay "
            "levels accept any delay with a fixed number of queues, and quorum levels lose no "
            "message.",
        )
    if kind == BUSY_WAIT:
        return (
            DELAY_LEVELS,
            levels,
            "In delay levels a message costs one write for each bit of its delay instead of each "
            "round, and no consumer is needed.",
        )
    if kind == DELAY_LEVELS and isinstance(params, LevelParams) and not params.is_at_least_once:
        return (
            DELAY_LEVELS,
            levels,
            "Quorum levels dead-letter at least once. Classic levels lose a message whose next "
            "queue is not available.",
        )
    return None


def _describe_cost(pattern: Pattern, params: Any) -> Cost:
    offered = pattern.delays(params)
    is_free = not pattern.definitions(params).queues
    number = len(pattern.definitions(params).queues)
    delay = max(offered) if offered else min(_HOUR, pattern.longest(params))
    waits = len(pattern.waits(params, delay))
    shortest = min((one for one in offered if one), default=None)
    return Cost(
        title=pattern.EXPLANATION.title,
        queues="one for each delay and destination" if is_free else str(number),
        writes=_describe_writes(pattern.KIND, params, delay, waits),
        precision=_describe_precision(pattern.KIND, params, shortest),
        hazards=pattern.EXPLANATION.hazards,
    )


def _describe_writes(kind: str, params: Any, delay: timedelta, waits: int) -> str:
    if kind == BUSY_WAIT:
        laps = max(1, delay // min(params.delays))
        return f"about {2 * laps + 1} for {format_delay(delay)}"
    return f"{waits + 1} for {format_delay(delay)}"


def _describe_precision(kind: str, params: Any, shortest: timedelta | None) -> str:
    if kind == DELAY_LEVELS:
        return f"steps of {format_delay(params.unit)}"
    if shortest is None:
        return "milliseconds"
    return f"only the available delays, from {format_delay(shortest)}"
