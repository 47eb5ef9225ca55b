"""Which queues an exchange puts a message into, as RabbitMQ does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from topology.definitions import Binding, Definitions, Exchange, Queue


@dataclass(frozen=True)
class Index:
    """Definitions made quick to ask: build it once and match many times."""

    definitions: Definitions

    @cached_property
    def exchanges(self) -> Mapping[str, Exchange]:
        return {exchange.name: exchange for exchange in self.definitions.exchanges}

    @cached_property
    def queues(self) -> Mapping[str, Queue]:
        return {queue.name: queue for queue in self.definitions.queues}

    @cached_property
    def leaving(self) -> Mapping[str, Sequence[Binding]]:
        by_source: dict[str, list[Binding]] = {}
        for binding in sorted(self.definitions.bindings, key=lambda binding: binding.identity):
            by_source.setdefault(binding.source, []).append(binding)
        return by_source


def route_queues(
    index: Index, exchange: str, routing_keys: Sequence[str], headers: Mapping[str, Any]
) -> list[str]:
    """The queues that get one copy each, sorted; empty when none does.

    `routing_keys` is the key and what CC and BCC add. "" is the default exchange: every
    queue by its name. An exchange passed twice is not passed again, so cycles end.
    """
    if exchange == "":
        return sorted({key for key in routing_keys if key in index.queues})
    reached: set[str] = set()
    seen: set[str] = set()
    waiting = [exchange]
    while waiting:
        name = waiting.pop()
        found = index.exchanges.get(name)
        if found is None or name in seen:
            continue
        seen.add(name)
        bindings = [
            b for b in index.leaving.get(name, ()) if _takes(found, b, routing_keys, headers)
        ]
        reached.update(b.destination for b in bindings if b.destination_is_queue)
        waiting.extend(b.destination for b in bindings if not b.destination_is_queue)
        alternate = found.arguments.text("alternate-exchange")
        if not bindings and alternate:
            waiting.append(alternate)
    return sorted(name for name in reached if name in index.queues)


def _takes(
    exchange: Exchange, binding: Binding, routing_keys: Sequence[str], headers: Mapping[str, Any]
) -> bool:
    match exchange.type:
        case "fanout":
            return True
        case "direct":
            return binding.routing_key in routing_keys
        case "topic":
            return any(topic_matches(binding.routing_key, key) for key in routing_keys)
        case "headers":
            return headers_match(binding.arguments, headers)
    return False


def topic_matches(pattern: str, key: str) -> bool:
    """`*` is exactly one word, `#` any number of them; words may be empty, dots part them."""
    words = key.split(".") if key else []
    return _words_match(pattern.split(".") if pattern else [], words)


def _words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Which lengths of `words` the pattern so far can have eaten, word by word of the pattern."""
    eaten = {0}
    for part in pattern:
        if part == "#":
            eaten = set(range(min(eaten), len(words) + 1))
        else:
            eaten = {n + 1 for n in eaten if n < len(words) and part in ("*", words[n])}
        if not eaten:
            return False
    return len(words) in eaten


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """x-match all (the default), any, all-with-x, any-with-x; others ignore x- names.

    Values match when their type class does too: `True` is not `1`, nor is `1.0`
    (rabbit_exchange_type_headers.erl).
    """
    mode = arguments.get("x-match", "all")
    with_x = mode in ("all-with-x", "any-with-x")
    wanted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    }
    hits = [
        type(headers.get(name)) is type(value) and headers[name] == value
        for name, value in wanted.items()
    ]
    return any(hits) if str(mode).startswith("any") else all(hits)
