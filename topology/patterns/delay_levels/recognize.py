"""Delay levels in a vhost: objects of the sets that we would declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topology.definitions import Definitions
from topology.patterns.delay_levels.objects import definitions, destinations, title
from topology.patterns.delay_levels.params import KIND, Params, candidates
from topology.patterns.delay_levels.sets import LevelSet, find_level_sets
from topology.patterns.pattern import Use
from topology.patterns.uses import find_missing


def recognize(found: Definitions) -> Sequence[Use]:
    """Chains of topic exchanges that look at one bit each, with queues of doubling TTLs.

    Found by the structure of a level, whole or with parts missing or different, and by the names
    that a preset or a prefix makes.
    """
    sets = find_level_sets(found)
    return [use for levels in sets if (use := _find_use(found, levels)) is not None]


def _find_use(found: Definitions, levels: LevelSet) -> Use | None:
    """With the parameters that what is there departs from least; half of it must be there."""
    best: Use | None = None
    for candidate in candidates(levels.lowest, levels.unit_ms, levels.levels):
        params = _set_destinations(candidate, found)
        wanted = definitions(params)
        there = [obj.identity for obj in wanted if found.get(obj.identity)]
        missing = find_missing(wanted, found)
        if 2 * len(there) < len(wanted) or (best and len(best.missing) <= len(missing)):
            continue
        bound = [binding.identity for binding in destinations(params, found)]
        best = Use(KIND, title(params), params, frozenset([*there, *bound]), missing)
    return best


def _set_destinations(params: Params, found: Definitions) -> Params:
    """Queues are its destinations, unless only exchanges are bound."""
    to_queues = [binding.destination_is_queue for binding in destinations(params, found)]
    lead = "queues" if not to_queues or any(to_queues) else "exchanges"
    return replace(params, destinations=lead)
