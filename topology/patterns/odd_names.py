"""Uses that others built with names that we would not give: shown, and not managed."""

from __future__ import annotations

from collections.abc import Collection

from topology.definitions import Definitions, Identity
from topology.patterns.pattern import Use


def shown_only(
    kind: str,
    name: str,
    found: Definitions,
    queues: Collection[str],
    exchanges: Collection[str] = (),
) -> Use:
    """A use with what is there of these queues, these exchanges and the bindings between them."""
    claimed: set[Identity] = {("queue", queue) for queue in queues}
    claimed.update(("exchange", exchange) for exchange in exchanges)
    for exchange in exchanges:
        for binding in found.leaving(exchange):
            others = queues if binding.destination_is_queue else exchanges
            if binding.destination in others:
                claimed.add(binding.identity)
    return Use(kind, name, None, frozenset(one for one in claimed if found.get(one)))
