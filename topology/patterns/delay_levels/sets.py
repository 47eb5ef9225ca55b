"""Level sets in a vhost: found by the structure of their levels, put together by their names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from topology.definitions import Definitions
from topology.patterns.delay_levels.chains import read_level

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
        level = read_level(exchange.name, found) if numbered else None
        if numbered is None or level is None or level.queue is None or level.passes is None:
            continue
        stem, digits = numbered.groups()
        unit_ms, rest = divmod(level.queue.message_ttl_ms or 0, 2 ** int(digits))
        if not rest:
            lowest = stem + ("00" if len(digits) > 1 and stem.endswith("-") else "0")
            counted.setdefault(lowest, Counter())[unit_ms, level.skipped + int(digits) + 1] += 1
    return [LevelSet(lowest, *counts.most_common(1)[0][0]) for lowest, counts in counted.items()]
