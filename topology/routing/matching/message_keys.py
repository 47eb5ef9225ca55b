"""The possible routing keys of messages in a queue, by its bindings."""

from __future__ import annotations

from topology.definitions import Exchange
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.index import Index


class MessageKeys:
    """The keys by queue, read from all bindings at the first question."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._bound: dict[str, set[str] | None] | None = None

    def of(self, queue: str) -> set[str] | None:
        """The possible keys of messages in this queue; None when any key is possible.

        Its own name, which is its key at the default exchange, and the keys of its bindings, if
        these are to direct exchanges or have no wildcard.
        """
        if self._bound is None:
            self._bound = self._all_keys()
        return self._bound.get(queue, {queue})

    def _all_keys(self) -> dict[str, set[str] | None]:
        found: dict[str, set[str] | None] = {}
        for binding in self._index.definitions.bindings:
            source = self._index.exchanges.get(binding.source)
            if not binding.destination_is_queue or source is None:
                continue
            keys = found.setdefault(binding.destination, {binding.destination})
            if keys is not None:
                if _is_literal(source, binding.routing_key):
                    keys.add(binding.routing_key)
                else:
                    found[binding.destination] = None
        return found


def _is_literal(source: Exchange, key: str) -> bool:
    kind = kind_of(source)
    words = key.split(".")
    return kind == "direct" or (kind == "topic" and "#" not in words and "*" not in words)
