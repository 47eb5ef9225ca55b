"""Retry ladder in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Queues that dead-letter into one exchange with the keys `<key>.try.1`, `<key>.try.2`, etc.,
    and are called `<name>-rung-1` and so on."""
    by_name: dict[str, Use] = {}
    for ladder in find_ladder_sets(found):
        params = _find_params(ladder)
        if params is not None and not _is_of_other_ladder(found, params):
            use = make_managed_use(KIND, params.name, params, definitions(params), found)
            by_name.setdefault(use.name, use)
    return list(by_name.values())


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
