"""Which queues an exchange puts a message into, as RabbitMQ does it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from topology.definitions import Exchange
from topology.routing.matching.delayed_exchange import delay_in_exchange_ms, kind_of
from topology.routing.matching.index import NEWEST, Index, headers_match

FORESEEABLE = ("direct", "fanout", "topic", "headers")
# Longest routing key: a short string of AMQP 0-9-1.
MAXIMUM_KEY_BYTES = 255
# Parts of a message that its queue does not show: keys beside the one that led there, headers.
Unknown: TypeAlias = Literal["keys", "headers"]
_OF_DEATHS = re.compile(r"x-(first-death|last-death)-|x-death$")


@dataclass(frozen=True)
class Matched:
    """The queues that get one copy each, sorted, and the exchanges behind which nothing was
    followed: those that choose in a way of their own, and those that keep it for a while."""

    queues: tuple[str, ...] = ()
    unforeseeable: tuple[Exchange, ...] = ()
    storing: tuple[Exchange, ...] = ()


@dataclass(frozen=True)
class Step:
    """An exchange that is passed, and the queues and exchanges that it hands the message to.

    Neither where it chooses in a way of its own. `to_alternate`: no binding of its own took it.
    """

    exchange: Exchange
    queues: Sequence[str] = ()
    further: Sequence[str] = ()
    to_alternate: bool = False


def match(
    index: Index,
    exchange: str,
    routing_keys: Sequence[str],
    headers: Mapping[str, Any],
    version: tuple[int, ...] = NEWEST,
) -> Matched:
    """Follow the bindings from `exchange`; "" is the default one: every queue by its name.

    `routing_keys` is the key and those of CC and BCC; headers are matched once for all of them. An
    exchange is passed only once, so cycles end. An alternate exchange gets what no binding of its
    own exchange matched, even if that binding leads nowhere. Neither a binding nor an alternate
    exchange can name the default exchange with any effect (rabbit_exchange.erl route/2 3.10.8,
    route/3 4.3.6).
    """
    if exchange == "":
        return Matched(tuple(sorted({key for key in routing_keys if key in index.queues})))
    reached: set[str] = set()
    unforeseeable, storing = [], []
    for step in steps(index, exchange, routing_keys, headers, version, waits=True):
        reached.update(step.queues)
        kept_ms = delay_in_exchange_ms(step.exchange, headers)
        if kind_of(step.exchange) not in FORESEEABLE or kept_ms is None:
            unforeseeable.append(step.exchange)
        elif kept_ms:
            storing.append(step.exchange)
    queues = tuple(sorted(name for name in reached if name in index.queues))
    return Matched(queues, _sort_by_name(unforeseeable), _sort_by_name(storing))


def _sort_by_name(exchanges: Sequence[Exchange]) -> tuple[Exchange, ...]:
    return tuple(sorted(exchanges, key=lambda exchange: exchange.name))


def steps(
    index: Index,
    exchange: str,
    routing_keys: Sequence[str],
    headers: Mapping[str, Any],
    version: tuple[int, ...],
    *,
    waits: bool = False,
) -> Iterator[Step]:
    """Every exchange that is passed, once each, beginning with `exchange`.

    One that keeps the message is passed as after its delay, with `waits` as before it.
    """
    seen = {exchange}
    waiting = [exchange]
    while waiting:
        found = index.exchanges.get(waiting.pop())
        if found is None:
            continue
        kept_ms = delay_in_exchange_ms(found, headers) if waits else 0
        if kind_of(found) not in FORESEEABLE or kept_ms is None:
            yield Step(found)
            continue
        leading = () if kept_ms else index.lead_on(found, routing_keys, headers, version)
        further = [name for is_queue, name in leading if not is_queue]
        queues = [name for is_queue, name in leading if is_queue]
        alternate = found.arguments.text("alternate-exchange")
        to_alternate = bool(alternate) and not leading
        if alternate and to_alternate:
            further = [alternate]
        yield Step(found, queues, further, to_alternate)
        waiting.extend(name for name in further if name not in seen)
        seen.update(further)


def find_deciding(
    index: Index,
    matched: Matched,
    exchange: str,
    routing_keys: Sequence[str],
    headers: Mapping[str, Any],
    version: tuple[int, ...],
    unknown: AbstractSet[Unknown],
) -> tuple[frozenset[Unknown], bool]:
    """Which parts of a message could bring it into more queues than it `matched`, of those that
    are `unknown`; and whether they could change these too: an alternate exchange led there.

    RabbitMQ routes by the keys in CC and BCC as well, also a dead letter, until a dead-letter
    routing key replaces them all (tried, 3.10.8 to 4.3.6).
    """
    reach = index.reach(exchange)
    if not unknown or len(reach.queues) == len(matched.queues):
        return frozenset(), False
    passed = list(steps(index, exchange, routing_keys, headers, version))
    kinds = {kind_of(one) for one in reach.exchanges}
    found: set[Unknown] = set()
    if "keys" in unknown and kinds & {"direct", "topic"}:
        found.add("keys")
    if "headers" in unknown and "headers" in kinds:
        there = reach.exchanges if found else [step.exchange for step in passed]
        if any(_may_take_more(index, one, headers, version) for one in there):
            found.add("headers")
    return frozenset(found), any(step.to_alternate for step in passed)


def _may_take_more(
    index: Index, exchange: Exchange, headers: Mapping[str, Any], version: tuple[int, ...]
) -> bool:
    """Whether a binding by headers does not take this message, and could with other headers; what
    RabbitMQ itself writes of a death is known."""
    bound = [one.arguments for one in index.definitions.leaving(exchange.name)]
    return kind_of(exchange) == "headers" and any(
        not headers_match(wanted, headers, version)
        and headers_match(wanted, {**_without_deaths(wanted), **headers}, version)
        for wanted in bound
    )


def _without_deaths(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not _OF_DEATHS.match(name)}


def keys_of(routing_key: str, headers: Mapping[str, Any]) -> tuple[str, ...]:
    """The routing key and those that the headers CC and BCC add (rabbit_basic:header_routes).

    Raises ValueError with a sentence for what makes the broker refuse the publish.
    """
    keys = [routing_key]
    for name in ("CC", "BCC"):
        stated = headers.get(name, ())
        if not isinstance(stated, (list, tuple)):
            raise ValueError(f"the header {name} is not a list of routing keys")
        keys.extend(key for key in stated if isinstance(key, str))
    if len(routing_key.encode()) > MAXIMUM_KEY_BYTES:
        raise ValueError(f"the routing key is longer than {MAXIMUM_KEY_BYTES} bytes")
    return tuple(keys)
