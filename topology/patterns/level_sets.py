"""Chains of level exchanges in a vhost, found by their bindings and dead-letter exchanges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.definitions import TAP_PREFIX, Binding, Definitions, Queue

_WAITS = re.compile(r"((?:\*\.)*)1\.#")


@dataclass(frozen=True)
class LevelSet:
    """`names` of the level exchanges, the highest first; the lowest level waits `unit_ms`."""

    names: tuple[str, ...]
    unit_ms: int
    delivery: str
    leads_to_queues: bool

    @property
    def lowest(self) -> str:
        return self.names[-1]


@dataclass(frozen=True)
class _Level:
    name: str
    skipped: int
    ttl_ms: int
    below: str


def find_level_sets(found: Definitions) -> list[LevelSet]:
    """Every complete chain, by the name of its highest exchange."""
    leaving: dict[str, list[Binding]] = {}
    for binding in found.bindings:
        leaving.setdefault(binding.source, []).append(binding)
    queues = {queue.name: queue for queue in found.queues}
    levels = {
        level.name: level
        for exchange in found.exchanges
        if exchange.type == "topic"
        if (level := _level(exchange.name, leaving.get(exchange.name, ()), queues))
    }
    tops = sorted(level.name for level in levels.values() if level.skipped == 0)
    chains = (_chain(name, levels) for name in tops)
    return [_set(chain, leaving) for chain in chains if chain]


def _level(name: str, leaving: Sequence[Binding], queues: Mapping[str, Queue]) -> _Level | None:
    """An exchange that puts a 1 at one place of the key into a queue and passes a 0 on, both to
    the same next exchange."""
    for waits in leaving:
        match = _WAITS.fullmatch(waits.routing_key)
        queue = queues.get(waits.destination) if waits.destination_is_queue else None
        if match is None or queue is None or not queue.message_ttl_ms:
            continue
        passes = match[1] + "0.#"
        below = queue.dead_letter_exchange
        if below and any(
            not b.destination_is_queue and (b.destination, b.routing_key) == (below, passes)
            for b in leaving
        ):
            return _Level(name, len(match[1]) // 2, queue.message_ttl_ms, below)
    return None


def _chain(top: str, levels: Mapping[str, _Level]) -> list[_Level]:
    """From the highest level down; empty when the TTLs do not halve from one to the next."""
    chain = [levels[top]]
    while (level := levels.get(chain[-1].below)) is not None:
        if level.skipped != len(chain) or level.ttl_ms * 2 != chain[-1].ttl_ms:
            return []
        chain.append(level)
    return chain


def _set(chain: Sequence[_Level], leaving: Mapping[str, Sequence[Binding]]) -> LevelSet:
    delivery = chain[-1].below
    bound = [b for b in leaving.get(delivery, ()) if not b.destination.startswith(TAP_PREFIX)]
    to_queues = [binding.destination_is_queue for binding in bound]
    return LevelSet(
        names=tuple(level.name for level in chain),
        unit_ms=chain[-1].ttl_ms,
        delivery=delivery,
        leads_to_queues=not to_queues or any(to_queues),
    )
