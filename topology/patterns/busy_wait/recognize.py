"""Busy wait in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topology.definitions import Definitions, Queue
from topology.patterns.busy_wait.params import (
    DELAY_SUFFIX,
    KIND,
    WAIT_SUFFIX,
    Params,
    definitions,
)
from topology.patterns.pattern import (
    ParamsError,
    Use,
)
from topology.patterns.uses import make_managed_use


def recognize(found: Definitions) -> Sequence[Use]:
    """A delay queue and the busy-waiting queue that it dead-letters into, by their names.

    By structure alone it is a delay queue of its busy-waiting queue: the broker has no information
    on what a consumer does. The due header is not visible either; the usual one is assumed.
    """
    rooms = sorted(found.dying_into(""), key=lambda queue: queue.name)
    uses = (_use(found, room) for room in rooms if room.name.endswith(DELAY_SUFFIX))
    return [use for use in uses if use is not None]


def _use(found: Definitions, room: Queue) -> Use | None:
    if room.message_ttl is None or room.type not in ("classic", "quorum"):
        return None
    name = room.name.removesuffix(DELAY_SUFFIX)
    waiting = name + WAIT_SUFFIX
    if room.dead_letter_routing_key != waiting:
        return None
    try:
        params = Params(name, (room.message_ttl,))
    except ParamsError:
        return None
    use = make_managed_use(KIND, params.queue, params, definitions(params), found)
    if found.queue(params.queue):
        return use
    return replace(
        use, missing=(*use.missing, f"The processing queue “{params.queue}” is missing.")
    )
