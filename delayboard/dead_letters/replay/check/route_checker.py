"""Checks very many messages: one walk for all messages with the same route; pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from delayboard.dead_letters.replay.check.targets import Target
from delayboard.dead_letters.replay.check.verdict import (
    LimitedQueue,
    Verdict,
    add_limits,
    keep_replayed_headers,
    make_guarded,
    make_refused,
    make_verdict,
)
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.broker.properties.read import strip_for_replay
from topology.definitions import DELAY_HEADER, DELAYED_TYPE, Definitions
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Forwarder, Properties, Publish, Route
from topology.routing.matching.delayed_exchange import delay_in_exchange_ms, kind_of
from topology.routing.matching.index import Index
from topology.routing.walk import walk

NOT_FINITE = (
    "A header holds NaN or an infinite number: RabbitMQ would close the connection. Edit it."
)
# What is known of more ways than this is forgotten: keys and headers may differ in every message.
MOST_KNOWN = 20_000


def count_replays(headers: Mapping[str, Any]) -> int:
    """How often a message was replayed before, according to its header."""
    stated = headers.get(REPLAYS_HEADER)
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    return max(0, stated) if is_number and isinstance(stated, int) else 0


def is_finite(value: Any) -> bool:
    """Whether all numbers in it are such as a broker takes (RabbitMQ 3.10 to 4.3 answer NaN and
    the infinite with 541, in tables and lists too).
    """
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(is_finite(item) for item in value.values())
        case list() | tuple():
            return all(is_finite(item) for item in value)
    return True


class RouteChecker:
    """Walks from the target of each message and returns where every copy ends, or why not.

    Deaths, CC and BCC are omitted, as a replay omits them. `found` is everything in the broker,
    taps included. A message whose header counts `most_replays` replays is guarded; None guards
    none. `limited` are the queues with a maximum length, by name.
    """

    def __init__(
        self,
        found: Definitions,
        consumed: Collection[str] = (),
        *,
        version: tuple[int, ...] = (),
        forwarders: Sequence[Forwarder] = (),
        now_ms: int = 0,
        most_replays: int | None = None,
        limited: Mapping[str, LimitedQueue] = MappingProxyType({}),
    ) -> None:
        self.index = Index(found.without_taps())
        self.now_ms = now_ms
        self._consumed = frozenset(consumed)
        self._version = version
        self._forwarders = tuple(forwarders)
        self._most_replays = most_replays
        self._limited = limited
        self._restricted = RestrictedExchanges(found)
        self._read = find_steering_headers(self.index, forwarders)
        self._known: dict[Hashable, Verdict] = {}
        self._indexes: dict[Hashable, Index] = {}

    def check(
        self, target: Target, source: str, properties: Properties, route: Route | None = None
    ) -> Verdict:
        """The verdict of a message with these properties from `source`. `route` leads into a delay,
        which replaces the direct publish to the target."""
        if why := self._explain_unsendable(target, properties, route):
            return make_refused(why)
        verdict = self._walk_route(target, source, properties, route)
        replays = count_replays(properties.headers)
        if self._most_replays is not None and replays >= self._most_replays:
            return make_guarded(verdict, replays)
        return verdict

    def _walk_route(
        self, target: Target, source: str, properties: Properties, route: Route | None
    ) -> Verdict:
        headers = self._select_headers(properties.headers, route)
        expiration = properties.expiration
        exchange, key = target.exchange, target.routing_key
        if route is not None:
            exchange, key = route.exchange, route.routing_key
        stated = tuple(sorted((name, repr(value)) for name, value in headers.items()))
        # The target determines what a route declares.
        cache_key = (exchange, key, target.routing_key, source, expiration, stated)
        known = self._known.get(cache_key)
        if known is None:
            walked = walk(
                self._index_of(target, route),
                exchange,
                key,
                version=self._version,
                headers=headers,
                expiration=expiration,
                consumed=self._consumed,
                forwarders=self._forwarders,
                now_ms=self.now_ms,
            )
            entered = dict.fromkeys(hop.queue for hop in walked.hops)
            limited = [self._limited[name] for name in entered if name in self._limited]
            known = add_limits(make_verdict(walked, source), limited)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[cache_key] = known
        return known

    def _select_headers(self, headers: Mapping[str, Any], route: Route | None) -> dict[str, Any]:
        """Of what is published, the headers that anything on the way may read."""
        found = {name: headers[name] for name in self._read if name in headers}
        if REPLAYS_HEADER in self._read:
            found[REPLAYS_HEADER] = count_replays(headers) + 1
        return found if route is None else {**found, **route.make_headers(self.now_ms)}

    def _index_of(self, target: Target, route: Route | None) -> Index:
        if route is None or all(self.index.definitions.get(t.identity) for t in route.declares):
            return self.index
        cache_key = (route.exchange, route.routing_key, target.routing_key)
        if cache_key not in self._indexes:
            self._indexes[cache_key] = Index(self.index.definitions | route.declares)
        return self._indexes[cache_key]

    def _explain_unsendable(
        self, target: Target, properties: Properties, route: Route | None
    ) -> str:
        """Why it cannot be published; "" when it can."""
        if properties.problems and (why := explain_uneditable(properties)):
            return why
        if not is_finite(keep_replayed_headers(properties.headers)):
            return NOT_FINITE
        exchange = target.exchange if route is None else route.exchange
        if exchange not in self._restricted.exchanges:
            return ""
        key = target.routing_key if route is None else route.routing_key
        stamped = {} if route is None else route.make_headers(self.now_ms)
        published = Properties(headers={**keep_replayed_headers(properties.headers), **stamped})
        return self._restricted.explain_refusal(Publish(exchange, key, published))


def find_steering_headers(index: Index, forwarders: Sequence[Forwarder]) -> frozenset[str]:
    """The headers of a replay on which its way through this vhost can depend."""
    by_headers = {x.name for x in index.exchanges.values() if kind_of(x) == "headers"}
    bindings = index.definitions.bindings
    names = {name for b in bindings if b.source in by_headers for name in b.arguments}
    if any(exchange.type == DELAYED_TYPE for exchange in index.exchanges.values()):
        names.add(DELAY_HEADER)
    names |= {forwarder.due_header for forwarder in forwarders if forwarder.due_header}
    return frozenset(name for name in names - {REPLAY_HEADER} if not is_excluded(name))


def explain_uneditable(properties: Properties) -> str:
    """Why the properties cannot be taken apart for a replay; "" when they can."""
    try:
        strip_for_replay(properties, {REPLAY_HEADER: "", REPLAYS_HEADER: 1})
    except FieldError as error:
        return f"Its properties cannot be edited: {error}."
    return ""


@dataclass(frozen=True)
class RestrictedExchanges:
    """Of all that a broker holds: the exchanges that keep messages."""

    definitions: Definitions
    exchanges: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        delayed = {x.name for x in self.definitions.exchanges if x.type == DELAYED_TYPE}
        object.__setattr__(self, "exchanges", frozenset(delayed))

    def explain_refusal(self, publish: Publish) -> str:
        """Why this message must not go to its exchange; "" when it may."""
        if publish.exchange not in self.exchanges:
            return ""
        return explain_returned(self.definitions, publish)


def explain_returned(definitions: Definitions, publish: Publish) -> str:
    """Why an exchange would both keep this message and give it back; "" when it would not."""
    exchange = definitions.exchange(publish.exchange)
    if exchange is None or delay_in_exchange_ms(exchange, publish.properties.headers) == 0:
        return ""
    return (
        f"The exchange “{publish.exchange}” is of the type {exchange.type}: it would keep the "
        "message and give it back too. Replay it to a queue through the default exchange."
    )
