"""PURE: what each pattern costs for the same delays."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from topology.delays import format_delay
from topology.patterns.busy_wait.params import KIND as BUSY_WAIT
from topology.patterns.busy_wait.params import Params as WaitParams
from topology.patterns.delay_levels.params import KIND as DELAY_LEVELS
from topology.patterns.delay_levels.params import Params as LevelParams
from topology.patterns.delay_queues.params import KIND as DELAY_QUEUES
from topology.patterns.delay_queues.params import Params as QueueParams
from topology.patterns.hold_queues.params import KIND as HOLD_QUEUES
from topology.patterns.hold_queues.params import Params as HoldParams
from topology.patterns.pattern import ParamsError
from topology.patterns.quorum_retry.params import KIND as QUORUM_RETRY
from topology.patterns.quorum_retry.params import Params as QuorumParams
from topology.patterns.retry_ladder.params import KIND as RETRY_LADDER
from topology.patterns.retry_ladder.params import Params as LadderParams
from topology.patterns.retry_loop.params import KIND as RETRY_LOOP
from topology.patterns.retry_pair.params import KIND as RETRY_PAIR
from topology.patterns.retry_pair.params import Params as PairParams
from topology.patterns.table import KINDS, list_created

DELAYS = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))
AT_MOST_ONCE = (
    "Classic levels dead-letter at most once. RabbitMQ drops a message whose next queue is not "
    "available, and a message to a destination without a binding."
)


@dataclass(frozen=True)
class Cost:
    """What a pattern costs for the compared delays.

    `writes` are for a message with the longest of them. `queues` is "" and `writes` None where it
    does not have all of them. `obstacle` is why the broker cannot have it.
    """

    kind: str
    title: str
    delays: str
    queues: str
    writes: int | None
    retries: str
    hazards: Sequence[str]
    obstacle: str = ""


def describe_cost(
    kind: str,
    params: Any,
    longest: timedelta,
    version: tuple[int, ...] = (),
    exchange_types: Collection[str] = (),
) -> Cost:
    """Of a use with these parameters; what a broker supports is known only with its version."""
    pattern = KINDS[kind]
    return Cost(
        kind,
        _name(kind, params),
        _describe_delays(kind, params),
        _describe_queues(kind, params),
        _count_writes(kind, params, longest),
        _describe_retries(kind, params),
        _list_hazards(kind, params),
        pattern.obstacle(params, version, exchange_types) if version else "",
    )


def list_costs(
    delays: Sequence[timedelta],
    version: tuple[int, ...] = (),
    exchange_types: Collection[str] = (),
) -> list[Cost]:
    """Of each pattern that is created, with parameters that offer these delays if it can."""
    longest = max(delays)
    costs = []
    for kind, pattern in list_created().items():
        params = _make_params(kind, tuple(delays))
        has_them = params is not None
        shown = params if has_them else pattern.EXAMPLE
        one = describe_cost(kind, shown, longest, version, exchange_types)
        if kind == RETRY_LADDER:
            one = replace(one, retries="one for each delay you choose, then parked")
        others = "one delay" if len(pattern.delays(shown)) == 1 else "other delays"
        costs.append(one if has_them else replace(one, delays=others, queues="", writes=None))
    return costs


def _make_params(kind: str, delays: tuple[timedelta, ...]) -> Any:
    """None where a pattern cannot offer all of them."""
    with suppress(KeyError, ParamsError):
        return _MAKE[kind](delays)
    return None


def _make_pair(delays: tuple[timedelta, ...]) -> PairParams:
    if len(delays) > 1:
        raise ParamsError({"delay": "A retry pair has one delay."})
    return PairParams("work", delay=delays[0])


def _make_loop(delays: tuple[timedelta, ...]) -> Any:
    texts = {"name": "work", "delay": format_delay(delays[0])}
    if len(delays) > 1:
        timeouts = [[f"key{number}", format_delay(one)] for number, one in enumerate(delays)]
        texts |= {"split": "key", "unmatched": "lost", "timeouts": json.dumps(timeouts)}
    return KINDS[RETRY_LOOP].parse(texts)


_MAKE: Mapping[str, Callable[[tuple[timedelta, ...]], Any]] = {
    BUSY_WAIT: lambda delays: WaitParams("work", delays),
    DELAY_LEVELS: lambda delays: LevelParams("own", "work"),
    DELAY_QUEUES: lambda delays: QueueParams("work", delays),
    HOLD_QUEUES: lambda delays: HoldParams(delays=delays),
    QUORUM_RETRY: lambda delays: QuorumParams("work", shortest=min(delays), longest=max(delays)),
    RETRY_LADDER: lambda delays: LadderParams("work", delays),
    RETRY_LOOP: _make_loop,
    RETRY_PAIR: _make_pair,
}


def _name(kind: str, params: Any) -> str:
    title = KINDS[kind].EXPLANATION.title
    if kind != DELAY_LEVELS:
        return title
    return f"{title}, {'quorum' if params.is_at_least_once else 'classic'} queues"


def _list_hazards(kind: str, params: Any) -> Sequence[str]:
    """The first one of delay levels is that of dead-lettering at least once."""
    hazards = KINDS[kind].EXPLANATION.hazards
    if kind == DELAY_LEVELS and not params.is_at_least_once:
        return (AT_MOST_ONCE, *hazards[1:])
    return hazards


def _describe_delays(kind: str, params: Any) -> str:
    if kind == QUORUM_RETRY:
        span = dict.fromkeys(map(format_delay, (params.shortest, params.longest)))
        return f"retries only, {' to '.join(span)}"
    if kind == DELAY_LEVELS:
        return f"any, in steps of {format_delay(params.unit)}"
    if kind == BUSY_WAIT:
        return f"any, in steps of {format_delay(params.lap)}"
    offered = [format_delay(one) for one in KINDS[kind].delays(params)]
    return ", ".join(offered) or "any, in steps of 1ms"


def _describe_queues(kind: str, params: Any) -> str:
    if kind != HOLD_QUEUES:
        return str(len(KINDS[kind].definitions(params).queues))
    number = len(params.delays)
    return f"{number} for each destination" if number else "1 for each delay and destination"


def _count_writes(kind: str, params: Any, delay: timedelta) -> int:
    """How often RabbitMQ writes one message with this delay into a queue."""
    if kind == BUSY_WAIT:
        laps: int = max(1, -(-delay // params.lap))
        return 2 * laps + 1
    return len(KINDS[kind].waits(params, delay)) + 1


def _describe_retries(kind: str, params: Any) -> str:
    pattern = KINDS[kind]
    if not pattern.ATTEMPTS_COUNTED_BY:
        return "none"
    rounds = params.limit if kind == QUORUM_RETRY else pattern.rounds(params)
    if rounds is None:
        return "no limit: only the consumer ends them"
    return f"{rounds}, then parked"
