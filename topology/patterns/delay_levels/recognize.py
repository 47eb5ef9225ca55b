"""Delay levels in a vhost: objects of the sets that we would declare, and other sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from topology.definitions import Definitions
from topology.patterns.delay_levels.chains import find_chains
from topology.patterns.delay_levels.objects import definitions, destinations, title
from topology.patterns.delay_levels.params import KIND, Params, candidates, odd_prefix
from topology.patterns.delay_levels.sets import LevelSet, find_level_sets
from topology.patterns.pattern import Use
from topology.patterns.uses import find_missing, make_unmanaged_use


def recognize(found: Definitions) -> Sequence[Use]:
    """Chains of topic exchanges that look at one bit each, with queues of doubling TTLs.

    Found by the structure of a level, whole or with parts missing or different; only names that a
    preset or a prefix makes give parameters that rebuild it. With a prefix that we would not give,
    and under any other names, it has none.
    """
    sets = find_level_sets(found)
    named = [use for levels in sets if (use := _find_use(found, levels)) is not None]
    ours = [levels.lowest.rstrip("0") for levels in sets if _is_ours(levels)]
    return [*named, *_find_unmanaged(found, ours, {use.name for use in named})]


def _is_ours(levels: LevelSet) -> bool:
    """Whether its names are such as we give, be there enough of it or not."""
    is_given = bool(candidates(levels.lowest, levels.unit_ms, levels.levels))
    return is_given or bool(odd_prefix(levels.lowest))


def _find_unmanaged(found: Definitions, ours: Sequence[str], taken: set[str]) -> Iterator[Use]:
    """Chains by structure alone, each with a name of its own; `ours` begin the names of others."""
    for chain in find_chains(found):
        if any(
            chain.top.startswith(stem) and chain.top.removeprefix(stem).isdecimal() for stem in ours
        ):
            continue
        name = next((one for one in (chain.stem, chain.top) if one and one not in taken), "")
        if name:
            taken.add(name)
            claims, missing = chain.claims(found), chain.missing(found)
            yield Use(KIND, name, None, claims, missing, has_foreign_names=True)


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
    return best or _find_odd_use(found, levels)


def _find_odd_use(found: Definitions, levels: LevelSet) -> Use | None:
    """With a prefix that we would not give; here too half of it must be there."""
    if not odd_prefix(levels.lowest):
        return None
    stem = levels.lowest.rstrip("0")
    width = len(levels.lowest) - len(stem)
    names = [f"{stem}{level:0{width}}" for level in range(levels.levels)]
    queues = [queue for name in names if (queue := found.queue(name))]
    exchanges = [name for name in names if found.exchange(name)]
    if len(queues) + len(exchanges) < levels.levels:
        return None
    below = {queue.dead_letter_exchange or "" for queue in queues}
    return make_unmanaged_use(KIND, stem.rstrip("-_"), found, names, {*exchanges, *below})


def _set_destinations(params: Params, found: Definitions) -> Params:
    """Queues are its destinations, unless only exchanges are bound."""
    to_queues = [binding.destination_is_queue for binding in destinations(params, found)]
    lead = "queues" if not to_queues or any(to_queues) else "exchanges"
    return replace(params, destinations=lead)
