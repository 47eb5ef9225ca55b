"""What dies into a queue: from which queues, for which reasons, by which way; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from topology.content.text import count_text
from topology.definitions import Definitions
from topology.routing.context import find_reasons
from topology.routing.cycle import Reason
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.index import Index, MessageKeys
from topology.routing.matching.match import match

# Reasons of deaths that are failures; an expiry is the end of a delay.
FAILURES = ("rejected", "maxlen", "delivery_limit")
NAMED = 3

_HOW = {
    "rejected": "consumers reject messages",
    "expired": "messages expire",
    "maxlen": "the queue is full",
    "delivery_limit": "messages exceed the delivery limit",
}


@dataclass(frozen=True)
class Feed:
    """Queues whose messages are dead-lettered into another by one route, for the same reasons.

    `routing_key` None means the messages' own keys; `key_matters` is false when the exchange
    ignores keys. `is_failure`: messages that failed in these queues come this way. What leaves a
    delay queue did not fail there, not even when the queue is full.
    """

    queues: tuple[str, ...]
    reasons: tuple[str, ...]
    exchange: str
    routing_key: str | None
    key_matters: bool = True
    is_failure: bool = False

    @property
    def sentence(self) -> str:
        """All of it in words."""
        names = ", ".join(f"“{name}”" for name in self.queues[:NAMED])
        more = len(self.queues) - NAMED
        who = f"{names} and {count_text(more)} more queues" if more > 0 else names
        reasons = " or ".join(f"{_HOW[reason]} ({reason})" for reason in self.reasons)
        return f"From {who} when {reasons}, {self._path}."

    @property
    def _path(self) -> str:
        if self.exchange == "":
            return "through the default exchange"
        path = f"through the exchange “{self.exchange}”"
        if not self.key_matters:
            return path
        return f"{path} with {_key(self.routing_key)}"


# Name of the queue that is fed -> its feeds.
Feeds: TypeAlias = Mapping[str, Sequence[Feed]]


def _key(routing_key: str | None) -> str:
    if routing_key is None:
        return "the original routing key"
    return f"routing key “{routing_key}”" if routing_key else "an empty routing key"


def find_feeds(
    found: Definitions,
    consumed: AbstractSet[str],
    delays: Collection[str],
    version: tuple[int, ...],
) -> Feeds:
    """What dies into each queue, by its name, failures first; Delayboard's taps aside.

    `found` has policies folded into the arguments, `consumed` are the queues with consumers,
    `delays` the delay queues.
    """
    index = Index(found.without_taps())
    queues_by_route: dict[tuple[str, str | None, tuple[Reason, ...], bool], list[str]] = {}
    for queue in sorted(index.queues.values(), key=lambda queue: queue.name):
        if queue.dead_letter_exchange is None:
            continue
        is_delay = queue.name in delays
        why = find_reasons(queue, version, is_delay=is_delay, is_consumed=queue.name in consumed)
        if why:
            is_failure = not is_delay and any(reason in FAILURES for reason in why)
            route = (queue.dead_letter_exchange, queue.dead_letter_routing_key, why, is_failure)
            queues_by_route.setdefault(route, []).append(queue.name)
    feeds: dict[str, list[Feed]] = {}
    keys = _Keys(index, version)
    for (exchange, key, why, is_failure), names in queues_by_route.items():
        for target, sources in keys.reached(exchange, key, names):
            sees = index.exchanges.get(exchange)
            matters = sees is None or kind_of(sees) in ("direct", "topic")
            feed = Feed(tuple(sources), why, exchange, key, matters, is_failure)
            feeds.setdefault(target, []).append(feed)
    for each in feeds.values():
        each.sort(key=lambda feed: (not feed.is_failure, feed.queues))
    return feeds


class _Keys:
    """The routes of messages that keep their own keys, by the bindings of their queue."""

    def __init__(self, index: Index, version: tuple[int, ...]) -> None:
        self._index = index
        self._version = version
        self._keys = MessageKeys(index)

    def reached(
        self, exchange: str, key: str | None, names: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """The queues behind a dead-letter exchange, each with those of `names` that lead there."""
        there = self._index.exchanges.get(exchange)
        # These look at no key.
        if there is not None and kind_of(there) in ("fanout", "headers"):
            yield from ((target, names) for target in self._index.reach(exchange).queues)
        elif key is not None:
            matched = match(self._index, exchange, [key], {}, self._version)
            yield from ((target, names) for target in matched.queues)
        else:
            yield from self._by_own_keys(exchange, names)

    def _by_own_keys(
        self, exchange: str, names: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[str]]]:
        by_target: dict[str, list[str]] = {}
        for name in names:
            keys = self._keys.of(name)
            if keys is None:
                targets: Iterable[str] = self._index.reach(exchange).queues if exchange else ()
            else:
                targets = match(self._index, exchange, sorted(keys), {}, self._version).queues
            for target in targets:
                # Back into itself it would only come by a message's own key.
                if exchange or target != name:
                    by_target.setdefault(target, []).append(name)
        yield from sorted(by_target.items())
