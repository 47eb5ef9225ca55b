"""Retry loop in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence

from topology.definitions import Definitions, Identity
from topology.patterns.pattern import (
    Use,
)
from topology.patterns.retry_loop.objects import definitions
from topology.patterns.retry_loop.params import KIND
from topology.patterns.retry_loop.shapes import Loop, find_loops, params_of
from topology.patterns.uses import make_managed_use


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues whose rejected messages return through a fanout exchange, whatever the names.

    A loop with one missing leg is found by the other. A loop that no parameters describe, such as
    one where two timeouts take the same message, has none.
    """
    return [_use(found, loop) for loop in find_loops(found)]


def _use(found: Definitions, loop: Loop) -> Use:
    params = params_of(found, loop)
    if params is None:
        return Use(KIND, loop.work, None, _claims_of(found, loop))
    return make_managed_use(KIND, params.input_queue, params, definitions(params), found)


def _claims_of(found: Definitions, loop: Loop) -> frozenset[Identity]:
    into = [b for x in {loop.input_exchange, loop.back} for b in found.leads(x, loop.work)]
    there = found.only(loop.identities() | {binding.identity for binding in into})
    return frozenset(obj.identity for obj in there)
