"""Quorum retry in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import Definitions, Queue
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.quorum_retry.params import KIND, KINDS, Params, definitions
from topology.patterns.uses import make_managed_use


def recognize(found: Definitions) -> Sequence[Use]:
    """Quorum queues with delayed retries, whatever feeds them.

    Those that dead-letter straight into another queue, with a limit and both delays stated.
    """
    return [
        make_managed_use(KIND, queue.name, params, definitions(params), found)
        for queue in sorted(found.queues, key=lambda queue: queue.name)
        if queue.type == "quorum" and queue.arguments.text("x-delayed-retry-type") in KINDS
        if (params := _params_of(found, queue)) is not None
    ]


def _params_of(found: Definitions, queue: Queue) -> Params | None:
    arguments = queue.arguments
    parking = queue.dead_letter_routing_key
    shortest, longest_ms = (arguments.number(f"x-delayed-retry-{end}") for end in ("min", "max"))
    limit = arguments.number("x-delivery-limit")
    if shortest is None or longest_ms is None or limit is None or parking is None:
        return None
    if queue.dead_letter_exchange != "":
        return None
    bound = found.leads(queue.name, queue.name)
    keys = [binding.routing_key for binding in bound if binding.routing_key]
    # An empty key would be read as the name.
    if bound and not keys:
        return None
    try:
        return Params(
            queue.name,
            arguments.text("x-delayed-retry-type") or "",
            timedelta(milliseconds=shortest),
            timedelta(milliseconds=longest_ms),
            limit,
            keys[0] if keys else "",
            parking,
        )
    except (ParamsError, OverflowError):
        return None
