"""Level sets in a vhost: found by the structure of their levels, put together by their names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from topology.definitions import Definitions, Queue, is_tap

_BIT = re.compile(r"((?:\*\.)*)([01])\.#")
_NUMBERED = re.compile(r"(.*\D)(\d{1,2})", re.DOTALL)


@dataclass(frozen=True)
class LevelSet:
    """`lowest` names level 0, which would wait `unit_ms`; `levels` is how many there should be."""

    lowest: str
    unit_ms: int
    levels: int


def find_level_sets(found: Definitions) -> list[LevelSet]:
    """Every set with at least one complete level, by name; the majority of its levels decides.

    A level's key contains how many levels are above it, its name how many are below, and its TTL
    how long the lowest waits.
    """
    counted: dict[str, Counter[tuple[int, int]]] = {}
    for exchange in sorted(found.exchanges, key=lambda exchange: exchange.name):
        numbered = _NUMBERED.fullmatch(exchange.name)
        level = _read_level(exchange.name, found) if numbered else None
        if numbered is None or level is None:
            continue
        skipped, queue = level
        stem, digits = numbered.groups()
        unit_ms, rest = divmod(queue.message_ttl_ms or 0, 2 ** int(digits))
        if not rest:
            lowest = stem + ("00" if len(digits) > 1 and stem.endswith("-") else "0")
            counted.setdefault(lowest, Counter())[unit_ms, skipped + int(digits) + 1] += 1
    return [LevelSet(lowest, *counts.most_common(1)[0][0]) for lowest, counts in counted.items()]


def _read_level(name: str, found: Definitions) -> tuple[int, Queue] | None:
    """How many bits of the key an exchange skips, and the queue of a 1 in the next one, where a 0
    leads to the exchange into which this queue expires."""
    leaving = [one for one in found.leaving(name) if not is_tap(one.destination)]
    bits = [(match, one) for one in leaving if (match := _BIT.fullmatch(one.routing_key))]
    passing = {
        (match[1], one.destination)
        for match, one in bits
        if match[2] == "0" and not one.destination_is_queue
    }
    for match, one in bits:
        queue = found.queue(one.destination) if one.destination_is_queue else None
        if match[2] == "0" or queue is None or not queue.message_ttl_ms:
            continue
        if (match[1], queue.dead_letter_exchange or "") in passing:
            return len(match[1]) // 2, queue
    return None
