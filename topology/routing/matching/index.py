"""Definitions indexed for many matches and walks, and what a binding of each kind takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.routing.matching.delayed_exchange import kind_of

NEWEST: tuple[int, ...] = (4, 3)
Found = TypeVar("Found")
# Whether it is a queue, and its name.
Destination: TypeAlias = tuple[bool, str]


@dataclass
class _Node(Generic[Found]):
    children: dict[str, _Node[Found]] = field(default_factory=dict)
    ends: list[Found] = field(default_factory=list)


class Trie(Generic[Found]):
    """Binding keys by their words: matching costs the key's words, not the number of bindings.

    The same walk as the broker's (rabbit_exchange_type_topic.erl 3.10.8,
    rabbit_db_topic_exchange.erl 4.3.6), except that no place is ever visited twice.
    """

    def __init__(self) -> None:
        self._root = _Node[Found]()

    def add(self, pattern: str, found: Found) -> None:
        node = self._root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        node.ends.append(found)

    def match(self, key: str) -> Iterator[Found]:
        """What was added under a pattern that matches the key, each once for each pattern."""
        words = words_of(key)
        reached: set[tuple[int, int]] = set()
        waiting = [(self._root, 0)]
        while waiting:
            node, place = waiting.pop()
            if (id(node), place) in reached:
                continue
            reached.add((id(node), place))
            if place == len(words):
                yield from node.ends
            waiting.extend(_steps(node, words, place))


def _steps(
    node: _Node[Found], words: Sequence[str], place: int
) -> Iterator[tuple[_Node[Found], int]]:
    if place < len(words):
        word = words[place]
        if word not in ("*", "#") and (child := node.children.get(word)) is not None:
            yield child, place + 1
        if (one := node.children.get("*")) is not None:
            yield one, place + 1
    if (many := node.children.get("#")) is not None:
        for eaten in range(place, len(words) + 1):
            yield many, eaten


def words_of(key: str) -> list[str]:
    """The words of a key, which may be empty; the empty key has none."""
    return key.split(".") if key else []


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


def headers_match(
    arguments: Mapping[str, Any], headers: Mapping[str, Any], version: tuple[int, ...] = NEWEST
) -> bool:
    """x-match all (the default), any, all-with-x, any-with-x; the first two ignore x- names.

    Values match when their kind does too: `True` is not `1`. Before 4.0 a whole number equals
    the same floating-point one, from 4.0 on it does not (`==` and `=:=` in
    rabbit_exchange_type_headers.erl 3.10.8 and 4.0.5).
    """
    mode = str(arguments.get("x-match", "all"))
    with_x = mode in ("all-with-x", "any-with-x")
    hits = (
        name in headers and _equal(value, headers[name], version)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(hits) if mode.startswith("any") else all(hits)


def _equal(wanted: Any, stated: Any, version: tuple[int, ...]) -> bool:
    given = _comparable(stated, version)
    if version < (4, 0) and isinstance(wanted, float | int) and isinstance(given, float | int):
        return isinstance(wanted, bool) == isinstance(given, bool) and wanted == given
    return type(wanted) is type(given) and bool(wanted == given)


def _comparable(value: Any, version: tuple[int, ...]) -> Any:
    """Bytes as text; a timestamp in seconds, from 4.0 on in milliseconds (mc_amqpl.erl 4.0.5)."""
    if isinstance(value, datetime):
        return int(value.timestamp()) * (1 if version < (4, 0) else 1000)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    return value


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
