"""Which queues an exchange puts a message into, as RabbitMQ does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topology.definitions import Exchange
from topology.routing.matching.delayed_exchange import delay_in_exchange_ms, kind_of
from topology.routing.matching.headers import NEWEST
from topology.routing.matching.index import Index

FORESEEABLE = ("direct", "fanout", "topic", "headers")
# A shortstr of the protocol: one byte of length.
MAXIMUM_KEY_BYTES = 255


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

    Neither where it chooses in a way of its own.
    """

    exchange: Exchange
    queues: Sequence[str] = ()
    further: Sequence[str] = ()


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
        if not leading and alternate:
            further = [alternate]
        yield Step(found, queues, further)
        waiting.extend(name for name in further if name not in seen)
        seen.update(further)


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
