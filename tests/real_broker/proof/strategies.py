"""Random cases: chains and rings of queues behind exchanges of every type.

Left out, because no run could tell right from wrong: consumers whose messages have a time to live
and that put them back or crash (a race), consumers that never end (tests of their own have them),
full queues, queues that expire, priorities, and exchange types of plugins.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.real_broker.proof.case import MARK, Case
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.routing.context import Consumer

TYPES = ("direct", "fanout", "topic", "headers")
ROLES = ("hold", "hold", "hold", "hold", "hold", "work", "work", "work", "crash", "crash", "end")
TIMES_MS = (0, 1, 5, 10, 20, 30, 40, 60, 80, 120, 200, 400)
WORDS = ("a", "b", "")
HEADERS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "pdf"},
    {"kind": "pdf", "size": 3},
    {"kind": True},
    {"size": 3},
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "pdf"},
    {"x-match": "any", "kind": "png", "size": 3},
    {"x-match": "all", "kind": "pdf", "x-ignored": 1},
    {"x-match": "all-with-x", "x-first-death-reason": "expired"},
    {"x-match": "any-with-x", "x-first-death-reason": "rejected", "kind": "pdf"},
    {"x-match": "any-with-x", "x-last-death-reason": "expired", "kind": True},
)
STRATEGIES: tuple[dict[str, Any], ...] = (
    {},
    {"x-dead-letter-strategy": "at-least-once"},
    {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"},
)


def make_case(chance: Random) -> Case:
    queues = [f"{MARK}q{number}" for number in range(chance.randint(2, 10))]
    names = [f"{MARK}x{number}" for number in range(chance.randint(0, 8))]
    exchanges = [_exchange(chance, name, names) for name in names]
    bindings = [_binding(chance, exchange, queues, names) for exchange in exchanges]
    if exchanges:
        more = chance.randint(0, 20 - len(bindings))
        sources = [chance.choice(exchanges) for _ in range(more)]
        bindings += [_binding(chance, source, queues, names) for source in sources]
    made = [_queue(chance, place, queues, bindings) for place in range(len(queues))]
    publics = [exchange.name for exchange in exchanges if not exchange.internal]
    exchange = chance.choice([*publics, ""])
    return Case(
        Definitions.of([*exchanges, *(queue for queue, _ in made), *bindings]),
        exchange,
        queues[0] if exchange == "" else _leading_key(chance, exchange, queues, bindings),
        _headers(chance, queues),
        str(chance.choice(TIMES_MS)) if chance.random() < 0.25 else None,
        {queue.name: consumer for queue, consumer in made if consumer},
    )


def _key(chance: Random, queues: list[str]) -> str:
    if chance.random() < 0.5:
        return chance.choice(queues)
    return ".".join(chance.choice(WORDS) for _ in range(chance.randint(1, 3)))


def _pattern(chance: Random) -> str:
    """From 4.3 on no more than two `#` in a key are taken."""
    words = [chance.choice((*WORDS, "*", "#")) for _ in range(chance.randint(1, 4))]
    return ".".join(words) if words.count("#") <= 2 else "#"


def _leading_key(chance: Random, exchange: str, queues: list[str], bindings: list[Binding]) -> str:
    """Mostly one that some binding of the exchange takes."""
    known = [b.routing_key.replace("*", "a").replace("#", "b.a") for b in bindings]
    near = [k for k, b in zip(known, bindings, strict=True) if b.source == exchange]
    return chance.choice(near) if near and chance.random() < 0.8 else _key(chance, queues)


def _exchange(chance: Random, name: str, names: list[str]) -> Exchange:
    arguments = {}
    if chance.random() < 0.3:
        arguments["alternate-exchange"] = chance.choice([*names, f"{MARK}gone"])
    is_internal = chance.random() < 0.1
    kind = chance.choice(TYPES)
    return Exchange(name, kind, internal=is_internal, arguments=Arguments(arguments))


def _queue(
    chance: Random, place: int, queues: list[str], bindings: list[Binding]
) -> tuple[Queue, Consumer | None]:
    """A queue and what consumes it; the last one always ends the way."""
    role = chance.choice(ROLES) if place < len(queues) - 1 else "end"
    is_quorum = role == "crash" or chance.random() < 0.25
    arguments: dict[str, Any] = {"x-queue-type": "quorum" if is_quorum else "classic"}
    consumer = None
    if role == "end":
        return Queue(queues[place], arguments=Arguments(arguments)), Consumer("acks")
    if is_quorum:
        arguments |= chance.choice(STRATEGIES)
    if role == "hold":
        arguments["x-message-ttl"] = chance.choice(TIMES_MS)
    elif role == "work":
        consumer = Consumer("rejects", chance.randint(1, 3))
    else:
        arguments["x-delivery-limit"] = chance.randint(0, 3)
        consumer = Consumer("crashes")
    arguments |= _dead_letters(chance, place, queues, bindings)
    return Queue(queues[place], arguments=Arguments(arguments)), consumer


def _dead_letters(
    chance: Random, place: int, queues: list[str], bindings: list[Binding]
) -> dict[str, Any]:
    """Mostly to the next queue, often to any, by the default exchange or one of its own."""
    if chance.random() < 0.04:
        return {}
    exchange = chance.choice([binding.source for binding in bindings] or [""])
    if chance.random() < 0.5:
        target = queues[place + 1] if chance.random() < 0.5 else chance.choice(queues)
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    if chance.random() < 0.05:
        return {"x-dead-letter-exchange": f"{MARK}gone"}
    if chance.random() < 0.4:
        return {"x-dead-letter-exchange": exchange}
    key = _leading_key(chance, exchange, queues, bindings)
    return {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}


def _binding(chance: Random, exchange: Exchange, queues: list[str], names: list[str]) -> Binding:
    to_queue = chance.random() < 0.75
    is_pattern = exchange.type == "topic" and chance.random() < 0.6
    key = _pattern(chance) if is_pattern else _key(chance, queues)
    arguments = chance.choice(ARGUMENTS) if exchange.type == "headers" else {}
    target = chance.choice(queues if to_queue else names)
    return Binding(exchange.name, target, key, to_queue, Arguments(arguments))


def _headers(chance: Random, queues: list[str]) -> dict[str, Any]:
    headers = dict(chance.choice(HEADERS))
    if chance.random() < 0.2:
        copies = [_key(chance, queues) for _ in range(chance.randint(1, 2))]
        headers[chance.choice(("CC", "BCC"))] = copies
    if chance.random() < 0.15:
        headers["x-death"] = [_death(chance, queues) for _ in range(chance.randint(1, 3))]
    return headers


def _death(chance: Random, queues: list[str]) -> dict[str, Any]:
    queue = chance.choice(queues)
    return {
        "queue": queue,
        "reason": chance.choice(("expired", "expired", "rejected")),
        "count": chance.randint(1, 2),
        "exchange": "",
        "routing-keys": [queue],
    }
