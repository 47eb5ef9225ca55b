"""Retry ladder in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from topology.definitions import Definitions
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.retry_ladder.params import (
    KIND,
    Params,
    definitions,
    ladder_name,
    rung_name,
)
from topology.patterns.retry_ladder.sets import LadderSet, find_ladder_sets
from topology.patterns.uses import make_managed_use


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues that dead-letter into one exchange with the keys `<key>.try.1`, `<key>.try.2`, etc.

    Only queues `<name>-rung-1` and so on give parameters that recreate the ladder. With other
    names, or with a rung missing in between, it is a ladder as long as a work queue dead-letters
    into it.
    """
    by_name: dict[str, Use] = {}
    uses = (use for ladder in find_ladder_sets(found) if (use := _use(found, ladder)))
    for use in sorted(uses, key=lambda use: use.params is None):
        known = by_name.get(use.name)
        if known is None:
            by_name[use.name] = use
        elif known.params is None:
            by_name[use.name] = _join_uses(known, use)
    return list(by_name.values())


def _join_uses(one: Use, other: Use) -> Use:
    """Rungs for several keys of one work queue."""
    missing = (*one.missing, *other.missing)
    return replace(one, claims=one.claims | other.claims, missing=missing)


def _use(found: Definitions, ladder: LadderSet) -> Use | None:
    params = _find_params(ladder)
    if params is None or _is_of_other_ladder(found, params):
        return _find_unmanaged(found, ladder)
    return make_managed_use(KIND, params.name, params, definitions(params), found)


def _find_params(ladder: LadderSet) -> Params | None:
    # An empty key would be read as the name.
    if ladder.gaps or not ladder.key:
        return None
    waits = tuple(queue.message_ttl or timedelta(0) for queue in ladder.rungs)
    try:
        params = Params(ladder.exchange, waits, ladder.key, ladder.parking)
    except ParamsError:
        return None
    named = [rung_name(params, rung) for rung in params.rungs]
    return params if [queue.name for queue in ladder.rungs] == named else None


def _is_of_other_ladder(found: Definitions, params: Params) -> bool:
    """Whether the work queue fails into something else than this ladder."""
    work = found.queue(params.name)
    return work is not None and work.dead_letter_exchange != ladder_name(params)


def _find_unmanaged(found: Definitions, ladder: LadderSet) -> Use | None:
    if ladder.work is None:
        return None
    missing = tuple(f"The queue of rung {rung} is missing." for rung in ladder.gaps)
    return Use(KIND, ladder.work.name, None, ladder.claims(found), missing)
