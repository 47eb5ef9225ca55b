"""The routes of a batch for the sender, with the checks before and after a publish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from delayboard.dead_letters.replay.batch.options import OptionError
from delayboard.dead_letters.replay.check.route_checker import RestrictedExchanges, count_replays
from delayboard.dead_letters.replay.check.targets import find_delay_route
from delayboard.dead_letters.replay.content import Content
from delayboard.models import ReplayBatch, ReplayRoute, TargetMode
from delayboard.publishing.intercepted import without_intercepted
from delayboard.publishing.own_declared import owning
from topology.broker.amqp.pipeline import Pipeline
from topology.broker.errors import Conflict, NotFound, Refused, Unsupported
from topology.broker.management.client import Management
from topology.broker.management.refresh import refresh_route
from topology.broker.properties.field_values import FieldError, read_table, write_entry
from topology.broker.properties.raw import strip_raw
from topology.broker.properties.read import read_properties
from topology.definitions import Definitions
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Properties, Publish, Route
from topology.patterns.pattern import ParamsError
from topology.provisioning.taps import lost_without_taps, tapped_exchanges

_REPLAYS = REPLAYS_HEADER.encode()
_OURS = frozenset({REPLAY_HEADER.encode(), _REPLAYS})
_NAMED = write_entry(REPLAY_HEADER, "")[:-4]
_entry = lru_cache(maxsize=64)(write_entry)
MOST_KNOWN = 20_000


@dataclass
class PublishRoute:
    """Where the items of a route are published.

    `refusal` says why publishing is impossible, "" when it is possible. `is_tapped`: only a tap of
    ours may receive the messages, so a confirm does not prove delivery.
    """

    route: Route
    is_delayed: bool
    refusal: str = ""
    is_tapped: bool = False
    declared_at: float | None = None

    @cached_property
    def _declares(self) -> bool:
        return len(self.route.declares) > 0

    @property
    def is_declared(self) -> bool:
        if not self._declares:
            return True
        lease = self.route.lease
        return self.declared_at is not None and (
            lease is None or time.monotonic() - self.declared_at < lease.total_seconds() / 2
        )


@dataclass
class PublishRoutes:
    """`definitions` are those of the vhost, looked at when the pass began."""

    batch: ReplayBatch
    definitions: Definitions
    management: Management
    pipeline: Pipeline[object]
    _known: dict[int, PublishRoute] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tapped = tapped_exchanges(self.definitions)
        self._restricted = RestrictedExchanges(self.definitions)

    def find(self, route: int) -> PublishRoute:
        """The publish route of a route. Raises BrokerError when the connection breaks."""
        publish_route = self._known.get(route)
        if publish_route is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            publish_route = self._known[route] = self._make_route(ReplayRoute.objects.get(pk=route))
        if not publish_route.refusal and not publish_route.is_declared:
            self._declare(publish_route)
        return publish_route

    def publish(self, publish_route: PublishRoute, content: Content, name: str) -> Publish:
        """The message without what dying added, under its replay id. Raises Unsendable."""
        if publish_route.refusal:
            raise Unsendable(publish_route.refusal)
        route = publish_route.route
        headers = (
            route.make_headers(time.time_ns() // 1_000_000) if route.due_header else route.headers
        )
        try:
            properties = stamp_for_replay(content.properties.raw, name, headers)
        except FieldError as error:
            raise Unsendable(f"Its properties cannot be edited: {error}.") from error
        if publish_route.is_tapped or route.exchange in self._restricted.exchanges:
            properties = read_properties(properties.raw)
        publish = Publish(route.exchange, route.routing_key, properties, content.body)
        if route.exchange in self._restricted.exchanges and (
            why := self._restricted.explain_refusal(publish)
        ):
            raise Unsendable(why)
        return publish

    def check(self) -> TapCheck:
        """A check for everything that was confirmed until now."""
        return TapCheck(self.management, self.definitions)

    def _make_route(self, row: ReplayRoute) -> PublishRoute:
        route, refusal = Route(row.exchange, row.routing_key), ""
        if row.ending == "refused":
            refusal = row.verdict
        elif self.batch.mode == TargetMode.DELAY:
            try:
                route = find_delay_route(self.batch, row.routing_key)
            except (OptionError, ParamsError) as error:
                refusal = str(error)
        return PublishRoute(
            route,
            row.after_ms > 0,
            refusal,
            is_tapped=route.exchange in self._tapped,
        )

    def _declare(self, publish_route: PublishRoute) -> None:
        """What it needs is there, and ours. A broker that refuses it refuses its messages."""
        assert self.batch.topology is not None
        declares = without_intercepted(publish_route.route.declares, self.batch.topology.broker)
        try:
            with owning(self.batch.topology, declares, self.definitions) as declared:
                self.pipeline.declare(declares)
                declared()
        except (Conflict, NotFound, Refused, Unsupported) as error:
            publish_route.refusal = str(error)
        publish_route.declared_at = time.monotonic()


class Unsendable(Exception):
    """The message was not sent and cannot be; the sentence says why."""


def stamp_for_replay(raw: bytes, name: str, headers: Mapping[str, Any]) -> Properties:
    """What `strip_for_replay` does with our headers, for very many messages: nothing is decoded.

    The properties without what dying added, with these headers, the replay id, and one replay more
    than the message states. Only `raw` is filled. Raises FieldError.
    """
    stripped = strip_raw(raw, _OURS.union([name.encode() for name in headers]))
    stated = stripped.replaced.get(_REPLAYS)
    try:
        replays = count_replays(read_table(stated)) if stated is not None else 0
    except FieldError:
        replays = 0
    # As `write_entry` writes a text, of which nearly all is the same each time.
    encoded = name.encode()
    entries = _NAMED + len(encoded).to_bytes(4) + encoded + _entry(REPLAYS_HEADER, replays + 1)
    if headers:
        entries = b"".join([write_entry(*pair) for pair in headers.items()]) + entries
    return Properties(raw=stripped.with_entries(entries))


class TapCheck:
    """At an exchange with a tap of ours a confirm may be the tap's alone, so it is looked again.

    Each exchange is looked at once, and each key walked once, unless headers decide there.
    """

    def __init__(self, management: Management, known: Definitions) -> None:
        self._management, self._known = management, known
        self._refreshed: dict[str, Definitions] = {}
        self._walked: dict[tuple[str, str], str] = {}

    def explain_loss(self, publish: Publish) -> str:
        """Why no real queue can have taken it; "" when one can. Raises BrokerError."""
        along = self._refresh(publish.exchange)
        key = (publish.exchange, publish.routing_key)
        if any(exchange.type == "headers" for exchange in along.exchanges):
            return self._walk(along, publish)
        if key not in self._walked:
            self._walked[key] = self._walk(along, publish)
        return self._walked[key]

    def _refresh(self, exchange: str) -> Definitions:
        if exchange not in self._refreshed:
            found = refresh_route(self._management, self._known, exchange)
            self._refreshed[exchange] = found.without_taps()
        return self._refreshed[exchange]

    def _walk(self, along: Definitions, publish: Publish) -> str:
        why = lost_without_taps(along, publish)
        return f"No queue but Delayboard's own tap took it: {why}." if why else ""
