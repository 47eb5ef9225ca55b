"""PURE: all patterns side by side, and which is better than a topology's own on its RabbitMQ."""

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
from topology.patterns.chain.params import chain_of
from topology.patterns.chain.pattern import DelayChain, RetryChain
from topology.patterns.delay_levels.params import KIND as DELAY_LEVELS
from topology.patterns.delay_levels.params import Params as LevelParams
from topology.patterns.delay_queues.params import KIND as DELAY_QUEUES
from topology.patterns.delay_queues.params import Params as QueueParams
from topology.patterns.delayed_exchange.params import KIND as DELAYED_EXCHANGE
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
from topology.patterns.table import KINDS, PATTERNS

# The first version that accepts the policy keys of a delayed retry too.
DELAYED_RETRY = (4, 3, 1)
LAST_WITH_PLUGIN = (4, 3)
DELAYS = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))
"""Of the comparison without a topology."""
AT_MOST_ONCE = (
    "Classic levels dead-letter at most once. RabbitMQ drops a message whose next queue is not "
    "available, and a message to a destination without a binding."
)
DELAY_CHAIN, RETRY_CHAIN = DelayChain.KIND, RetryChain.KIND
_HOUR = timedelta(hours=1)
_ZERO = timedelta(0)
_RETRIES = (RETRY_LOOP, RETRY_PAIR, RETRY_LADDER, DELAY_QUEUES, RETRY_CHAIN)


@dataclass(frozen=True)
class Verdict:
    """The kind of the better pattern, "" for none, and why."""

    kind: str
    why: str

    @property
    def title(self) -> str:
        return KINDS[self.kind].EXPLANATION.title if self.kind else ""


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


def find_better(kind: str, params: Any, version: tuple[int, ...]) -> Verdict:
    """Which pattern serves better than this use, by its parameters, applied or not."""
    if KINDS[kind].is_held(params):
        return Verdict("", "The library keeps these delays itself, and can use no queue for them.")
    if kind in _RETRIES and version >= DELAYED_RETRY:
        return Verdict(
            QUORUM_RETRY,
            "A quorum queue of this RabbitMQ version delays the retry itself: one queue, no "
            "exchange, no x-death to count. It parks a message after the last retry.",
        )
    if kind in (RETRY_LOOP, RETRY_PAIR, RETRY_CHAIN):
        return Verdict(
            RETRY_LADDER,
            "RabbitMQ never ends the retries of this topology: only its consumer can. A retry "
            "ladder retries once after each of its delays, and then parks the message.",
        )
    if kind == DELAY_QUEUES:
        return Verdict(
            RETRY_LADDER,
            "When the consumer rejects a message, a retry ladder moves it to the next delay. The "
            "consumer needs no publisher, and a crash between its publish and its ack repeats no "
            "message.",
        )
    if kind == DELAYED_EXCHANGE:
        state = "does not run on this version" if version >= LAST_WITH_PLUGIN else "is archived"
        return Verdict(
            DELAY_LEVELS,
            f"The plugin {state} and keeps its messages on one node. Delay levels use queues.",
        )
    if kind == HOLD_QUEUES and not params.delays:
        return Verdict(
            DELAY_LEVELS,
            "This topology accepts any delay, so each different delay needs its own queue. Delay "
            "levels accept any delay with a fixed number of queues, and quorum levels lose no "
            "message.",
        )
    if kind == BUSY_WAIT:
        return Verdict(
            DELAY_LEVELS,
            "In delay levels a message costs one write for each bit of its delay instead of each "
            "round, and no consumer is needed.",
        )
    if kind == DELAY_LEVELS and not params.is_at_least_once:
        return Verdict(
            DELAY_LEVELS,
            "Quorum levels dead-letter at least once. Classic levels lose a message whose next "
            "queue is not available.",
        )
    if kind == DELAY_CHAIN and not all(queue.message_ttl for queue in chain_of(params).waiting):
        return Verdict(
            DELAY_LEVELS,
            "Messages of this topology have their own expirations, and one waits behind another "
            "with a longer one. Delay levels accept any delay, and no message delays another.",
        )
    return Verdict("", _WHY_BEST.get(kind, KINDS[kind].EXPLANATION.cost))


_NEEDS_NEWER = (
    "Only RabbitMQ 4.3.1 and later delays a retry in the work queue itself, with fewer queues."
)
_WHY_BEST: Mapping[str, str] = {
    RETRY_LADDER: _NEEDS_NEWER,
    QUORUM_RETRY: "The work queue delays each retry itself and parks a message after the last one. "
    "Every other retry pattern needs more writes.",
    DELAY_LEVELS: "Quorum levels accept any delay with a fixed number of queues, and lose no "
    "message.",
    DELAY_CHAIN: "For a few fixed delays, one queue for each costs fewer writes than delay levels.",
    HOLD_QUEUES: "For a few fixed delays, one queue for each costs fewer writes than delay levels.",
}


def delays_of(kind: str, params: Any) -> tuple[timedelta, ...]:
    """Those to compare with; of a topology that accepts any delay, an hour if it can."""
    if kind == QUORUM_RETRY:
        return tuple(sorted({params.shortest, params.longest}))
    offered = tuple(sorted({one for one in KINDS[kind].delays(params) if one > _ZERO}))
    return offered or (min(_HOUR, KINDS[kind].longest(params)),)


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
    """Of each pattern, with parameters that offer these delays if it can have them."""
    longest = max(delays)
    costs = []
    for kind, pattern in PATTERNS.items():
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
    DELAYED_EXCHANGE: lambda delays: KINDS[DELAYED_EXCHANGE].EXAMPLE,
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
