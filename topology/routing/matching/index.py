"""Definitions indexed for many matches and walks: built once, used often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.headers import headers_match
from topology.routing.matching.topic import Trie

# A queue (True) or an exchange (False), and its name.
Destination: TypeAlias = tuple[bool, str]


@dataclass
class _Table:
    """The bindings that leave one exchange, ordered for its type."""

    all: list[Destination] = field(default_factory=list)
    by_key: dict[str, list[Destination]] = field(default_factory=dict)
    by_pattern: Trie[Destination] = field(default_factory=Trie)
    by_headers: list[tuple[Mapping[str, Any], Destination]] = field(default_factory=list)

    def add(self, kind: str, binding: Binding) -> None:
        destination = (binding.destination_is_queue, binding.destination)
        match kind:
            case "direct":
                self.by_key.setdefault(binding.routing_key, []).append(destination)
            case "topic":
                self.by_pattern.add(binding.routing_key, destination)
            case "headers":
                self.by_headers.append((binding.arguments, destination))
            case _:
                self.all.append(destination)


class Index:
    """One vhost's exchanges, queues and bindings, for any number of walks.

    Building takes time in proportion to the definitions. It holds nothing of a walk, so threads
    may share it.
    """

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.exchanges: Mapping[str, Exchange] = {x.name: x for x in definitions.exchanges}
        self.queues: Mapping[str, Queue] = {queue.name: queue for queue in definitions.queues}
        self._tables: dict[str, _Table] = {}
        for binding in definitions.bindings:
            if (source := self.exchanges.get(binding.source)) is not None:
                table = self._tables.get(source.name)
                if table is None:
                    table = self._tables[source.name] = _Table()
                table.add(kind_of(source), binding)

    @classmethod
    def of(cls, found: Definitions | Index) -> Index:
        return found if isinstance(found, Index) else cls(found)

    def lead_on(
        self,
        exchange: Exchange,
        routing_keys: Sequence[str],
        headers: Mapping[str, Any],
        version: tuple[int, ...],
    ) -> Iterable[Destination]:
        """Where the exchange's own bindings lead; for a type of no rule of ours, all of them."""
        table = self._tables.get(exchange.name)
        if table is None:
            return ()
        match kind_of(exchange):
            case "direct":
                return [to for key in routing_keys for to in table.by_key.get(key, ())]
            case "topic":
                return [to for key in routing_keys for to in table.by_pattern.match(key)]
            case "headers":
                return [
                    to for wanted, to in table.by_headers if headers_match(wanted, headers, version)
                ]
        return table.all
