"""Which pattern fits, and what each costs for the same delays: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.delays import format_delay
from topology.patterns.busy_wait.params import KIND as BUSY_WAIT
from topology.patterns.delay_levels.params import KIND as DELAY_LEVELS
from topology.patterns.hold_queues.params import KIND as HOLD_QUEUES
from topology.patterns.pattern import ParamsError, Pattern
from topology.patterns.quorum_retry.params import KIND as QUORUM_RETRY
from topology.patterns.retry_ladder.params import KIND as RETRY_LADDER
from topology.patterns.retry_loop.params import KIND as RETRY_LOOP
from topology.patterns.table import list_created
from topology.patterns.texts import write_delays

DELAYS = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))
# Texts of the fields of a pattern's form besides names and delays.
_TEXTS: Mapping[str, dict[str, str]] = {
    DELAY_LEVELS: {"preset": "own"},
    RETRY_LOOP: {"split": "key", "unmatched": "lost"},
}


@dataclass(frozen=True)
class Cost:
    """What a pattern costs for the compared delays.

    `writes` are for a message with the longest of them. `queues` is "" and `writes` None where it
    does not have all of them.
    """

    kind: str
    title: str
    delays: str
    queues: str
    writes: int | None
    retries: str
    hazards: Sequence[str]


def list_costs(delays: Sequence[timedelta]) -> list[Cost]:
    """The costs of each pattern that is created, with parameters that offer these delays if it
    can.
    """
    return [_find_cost(pattern, delays) for pattern in list_created().values()]


def _find_cost(pattern: Pattern, delays: Sequence[timedelta]) -> Cost:
    params = _make_params(pattern, delays)
    title, hazards = pattern.EXPLANATION.title, pattern.EXPLANATION.hazards
    if params is None:
        shown = pattern.EXAMPLE
        others = "one delay" if len(pattern.delays(shown)) == 1 else "other delays"
        retries = _describe_retries(pattern, shown)
        return Cost(pattern.KIND, title, others, "", None, retries, hazards)
    return Cost(
        pattern.KIND,
        f"{title}, quorum queues" if pattern.KIND == DELAY_LEVELS else title,
        _describe_delays(pattern, params),
        _describe_queues(pattern, params),
        _count_writes(pattern, params, max(delays)),
        _describe_retries(pattern, params),
        hazards,
    )


def _make_params(pattern: Pattern, delays: Sequence[timedelta]) -> Any:
    """None where a pattern cannot offer all of them."""
    texts = {
        **dict.fromkeys(("name", "queue", "prefix"), "work"),
        "delays": write_delays(delays),
        "delay": format_delay(delays[0]),
        "shortest": format_delay(min(delays)),
        "longest": format_delay(max(delays)),
        "timeouts": ", ".join(f"key{n} {format_delay(one)}" for n, one in enumerate(delays)),
    }
    try:
        params = pattern.parse(texts | _TEXTS.get(pattern.KIND, {}))
    except ParamsError:
        return None
    offered = set(pattern.delays(params)) - {timedelta(0)}
    return params if not offered or offered >= set(delays) else None


def _describe_delays(pattern: Pattern, params: Any) -> str:
    if pattern.KIND == QUORUM_RETRY:
        span = dict.fromkeys(map(format_delay, (params.shortest, params.longest)))
        return f"retries only, {' to '.join(span)}"
    if pattern.KIND in (DELAY_LEVELS, BUSY_WAIT):
        step = params.unit if pattern.KIND == DELAY_LEVELS else params.lap
        return f"any, in steps of {format_delay(step)}"
    return write_delays(pattern.delays(params)) or "any, in steps of 1ms"


def _describe_queues(pattern: Pattern, params: Any) -> str:
    if pattern.KIND == HOLD_QUEUES:
        return f"{len(params.delays)} for each destination"
    return str(len(pattern.definitions(params).queues))


def _count_writes(pattern: Pattern, params: Any, delay: timedelta) -> int:
    """How often RabbitMQ writes one message with this delay into a queue."""
    if pattern.KIND == BUSY_WAIT:
        laps: int = max(1, -(-delay // params.lap))
        return 2 * laps + 1
    return len(pattern.waits(params, delay)) + 1


def _describe_retries(pattern: Pattern, params: Any) -> str:
    if not pattern.ATTEMPTS_COUNTED_BY:
        return "none"
    if pattern.KIND == RETRY_LADDER:
        return "one for each delay you choose, then parked"
    rounds = params.limit if pattern.KIND == QUORUM_RETRY else pattern.rounds(params)
    if rounds is None:
        return "no limit: only the consumer ends them"
    return f"{rounds}, then parked"
