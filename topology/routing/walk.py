"""Where a message would go, when, and how it ends: time, TTL, dead-lettering, cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from topology.definitions import Definitions, Queue
from topology.delays import format_delay
from topology.routing.match import Index, route_queues

Ending = Literal["delivered", "held", "dropped"]
# Enough for every topology that means something; a fan-out of rings has more ways than time.
MAXIMUM_OUTCOMES = 200
MAXIMUM_COPIES = 2000


@dataclass(frozen=True)
class Hop:
    """A stay in a queue: reached through an exchange with a key, `after` the publish.

    `stays` is how long, None when it ends there; `why` says what put the message in.
    """

    exchange: str
    routing_key: str
    queue: str
    after: timedelta
    stays: timedelta | None
    why: str


@dataclass(frozen=True)
class Outcome:
    """How one copy ends: in `queue` `after` the publish, or dropped, with a sentence why."""

    ending: Ending
    queue: str
    after: timedelta
    why: str
    hops: tuple[Hop, ...] = ()


@dataclass(frozen=True)
class Walk:
    """Every copy's outcome; never empty: a publish that no queue takes is one `dropped`."""

    outcomes: tuple[Outcome, ...]

    @property
    def delivered(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.ending == "delivered")

    @property
    def is_routed(self) -> bool:
        """Whether the broker would confirm it rather than give it back."""
        return any(outcome.hops for outcome in self.outcomes)

    @property
    def hops(self) -> tuple[Hop, ...]:
        seen = {hop: None for outcome in self.outcomes for hop in outcome.hops}
        return tuple(seen)


@dataclass(frozen=True)
class _Copy:
    exchange: str
    keys: tuple[str, ...]
    why: str
    after: timedelta = timedelta(0)
    expiration_ms: int | None = None
    deaths: tuple[tuple[str, str], ...] = ()
    hops: tuple[Hop, ...] = field(default=())


def walk(
    definitions: Definitions,
    exchange: str,
    routing_key: str,
    *,
    headers: Mapping[str, Any] | None = None,
    expiration_ms: int | None = None,
    consumed: AbstractSet[str] = frozenset(),
    extra_keys: Sequence[str] = (),
) -> Walk:
    """Follow one publish through queue TTLs, expirations and dead-letter exchanges.

    A queue without a TTL, and one of `consumed`, ends the way: delivered. What dies by
    `expired` twice in one queue without a rejection between is dropped, as the broker's
    cycle rule has it (rabbit_dead_letter.erl 3.10.8, mc.erl 4.3.5). Where the way branches
    beyond all measure the last outcome is one `held`, which says that it was not followed on.
    """
    index = Index(definitions)
    start = _Copy(exchange, (routing_key, *extra_keys), "published", expiration_ms=expiration_ms)
    waiting, outcomes = deque([start]), list[Outcome]()
    for _ in range(MAXIMUM_COPIES):
        if not waiting or len(outcomes) >= MAXIMUM_OUTCOMES:
            break
        copy = waiting.popleft()
        reached, lost = _route(index, copy, headers or {})
        outcomes.extend(lost)
        for queue in reached:
            ended, onward = _stay(copy, queue, consumed)
            outcomes.extend(ended)
            waiting.extend(onward)
    if waiting:
        outcomes.append(_given_up(waiting[0]))
    return Walk(tuple(outcomes))


def _route(
    index: Index, copy: _Copy, headers: Mapping[str, Any]
) -> tuple[list[Queue], list[Outcome]]:
    if copy.exchange and copy.exchange not in index.exchanges:
        return [], [_lost(copy, f"there is no exchange “{copy.exchange}”")]
    names = route_queues(index, copy.exchange, copy.keys, headers)
    if not names:
        where = f"the exchange “{copy.exchange}”" if copy.exchange else "the default exchange"
        key = ", ".join(f"“{key}”" for key in copy.keys)
        return [], [_lost(copy, f"{where} has no queue for the key {key}")]
    in_cycle = {name for name in names if _is_cycle(copy.deaths, name)}
    lost = [
        _lost(copy, f"the broker drops it before “{name}”: it expired there before, unrejected")
        for name in sorted(in_cycle)
    ]
    return [index.queues[name] for name in names if name not in in_cycle], lost


def _stay(
    copy: _Copy, queue: Queue, consumed: AbstractSet[str]
) -> tuple[list[Outcome], list[_Copy]]:
    ttl = _smaller(queue.message_ttl_ms, copy.expiration_ms)
    hop = Hop(copy.exchange, copy.keys[0], queue.name, copy.after, None, copy.why)
    if ttl is None or queue.name in consumed or queue.type == "stream":
        hops = (*copy.hops, hop)
        return [Outcome("delivered", queue.name, copy.after, "it stays for a consumer", hops)], []
    stays = timedelta(milliseconds=ttl)
    hops = (*copy.hops, replace(hop, stays=stays))
    after = copy.after + stays
    if queue.dead_letter_exchange is None:
        why = (
            f"it expires in “{queue.name}” after {format_delay(stays)}, which dead-letters nowhere"
        )
        return [Outcome("dropped", queue.name, after, why, hops)], []
    key = queue.dead_letter_routing_key
    onward = _Copy(
        exchange=queue.dead_letter_exchange,
        keys=copy.keys if key is None else (key,),
        why=f"expired in {queue.name} after {format_delay(stays)}",
        after=after,
        deaths=((queue.name, "expired"), *copy.deaths),
        hops=hops,
    )
    return [], [onward]


def _is_cycle(deaths: Sequence[tuple[str, str]], queue: str) -> bool:
    """Deaths are newest first: back to the last one in `queue`, none of them `rejected`."""
    if not deaths or deaths[0][1] == "rejected":
        return False
    for name, reason in deaths:
        if reason == "rejected":
            return False
        if name == queue:
            return True
    return False


def _given_up(copy: _Copy) -> Outcome:
    why = "the way branches too often to be followed to all its ends"
    return Outcome("held", copy.hops[-1].queue if copy.hops else "", copy.after, why, copy.hops)


def _lost(copy: _Copy, why: str) -> Outcome:
    queue = copy.hops[-1].queue if copy.hops else ""
    return Outcome("dropped", queue, copy.after, why, copy.hops)


def _smaller(first: int | None, second: int | None) -> int | None:
    stated = [value for value in (first, second) if value is not None]
    return min(stated) if stated else None
