"""Retry loop in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence

from topology.definitions import Definitions
from topology.patterns.pattern import (
    Use,
)
from topology.patterns.retry_loop.objects import definitions
from topology.patterns.retry_loop.params import KIND
from topology.patterns.retry_loop.shapes import find_loops, params_of
from topology.patterns.uses import make_managed_use


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues whose rejected messages return through a fanout exchange, whatever the names.

    A loop with one missing leg is found by the other. One that no parameters describe, such as
    one where two timeouts take the same message, is left out.
    """
    return [
        make_managed_use(KIND, params.input_queue, params, definitions(params), found)
        for loop in find_loops(found)
        if (params := params_of(found, loop)) is not None
    ]
