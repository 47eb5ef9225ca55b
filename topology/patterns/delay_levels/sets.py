"""Level sets in a vhost: found by the structure of their levels, put together by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from topology.definitions import Binding, Definitions

_WAITS = re.compile(r"((?:\*\.)*)1\.#")
_NUMBERED = re.compile(r"(.*\D)(\d{1,2})", re.DOTALL)


@dataclass(frozen=True)
class LevelSet:
    """`lowest` names level 0, which would wait `unit_ms`; `levels` is how many there should be."""

    lowest: str
    unit_ms: int
    levels: int


def find_level_sets(found: Definitions) -> list[LevelSet]:
    """Every set of which a level stands whole, by name; what most of its levels tell is believed.

    That level says by its key how many are above it, by its name how many are below, and by its
    TTL what the lowest waits.
    """
    counted: dict[str, Counter[tuple[int, int]]] = {}
    for exchange in sorted(found.exchanges, key=lambda exchange: exchange.name):
        for lowest, unit_ms, levels in _level(exchange.name, found):
            counted.setdefault(lowest, Counter())[unit_ms, levels] += 1
    return [LevelSet(lowest, *counts.most_common(1)[0][0]) for lowest, counts in counted.items()]


def _level(name: str, found: Definitions) -> Iterator[tuple[str, int, int]]:
    """An exchange that puts a 1 at one place of the key into a queue and passes a 0 on, both to
    the same next exchange."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return
    stem, digits = numbered.groups()
    leaving = found.leaving(name)
    for waits in leaving:
        match = _WAITS.fullmatch(waits.routing_key)
        queue = found.queue(waits.destination) if waits.destination_is_queue else None
        if match is None or queue is None or not queue.message_ttl_ms:
            continue
        below = queue.dead_letter_exchange
        unit_ms, rest = divmod(queue.message_ttl_ms, 2 ** int(digits))
        if below and not rest and _passes_on(found, name, below, match[1]):
            padded = len(digits) > 1 and stem.endswith("-")
            yield stem + ("00" if padded else "0"), unit_ms, len(match[1]) // 2 + int(digits) + 1


def _passes_on(found: Definitions, name: str, below: str, skipped: str) -> bool:
    passes = Binding(name, below, f"{skipped}0.#", destination_is_queue=False)
    return found.get(passes.identity) is not None
