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


@dataclass(frozen=True)
class Reach:
    """What some message may get into from an exchange, and the exchanges that it may pass."""

    queues: frozenset[str]
    exchanges: tuple[Exchange, ...] = ()


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
        self._reach: dict[str, Reach] = {}
        for binding in definitions.bindings:
            if (source := self.exchanges.get(binding.source)) is not None:
                table = self._tables.get(source.name)
                if table is None:
                    table = self._tables[source.name] = _Table()
                table.add(kind_of(source), binding)

    @classmethod
    def of(cls, found: Definitions | Index) -> Index:
        return found if isinstance(found, Index) else cls(found)

    def reach(self, exchange: str) -> Reach:
        """With any routing keys and headers, alternate exchanges included."""
        found = self._reach.get(exchange)
        if found is None:
            found = self._reach[exchange] = self._find_reach(exchange)
        return found

    def _find_reach(self, exchange: str) -> Reach:
        if not exchange:
            return Reach(frozenset(self.queues), (Exchange(""),))
        queues, seen, waiting = set[str](), {exchange}, [exchange]
        while waiting:
            name = waiting.pop()
            leaving = self.definitions.leaving(name)
            queues.update(one.destination for one in leaving if one.destination_is_queue)
            further = {one.destination for one in leaving if not one.destination_is_queue}
            if alternate := self._alternate(name):
                further.add(alternate)
            waiting += further - seen
            seen |= further
        passed = tuple(self.exchanges[name] for name in sorted(seen) if name in self.exchanges)
        return Reach(frozenset(name for name in queues if name in self.queues), passed)

    def _alternate(self, exchange: str) -> str | None:
        found = self.exchanges.get(exchange)
        return found.arguments.text("alternate-exchange") if found else None

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
