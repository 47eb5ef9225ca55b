"""The routes of a batch for the sender, with the checks before and after a publish."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from delayboard.dead_letters.replay.batch.options import OptionError
from delayboard.dead_letters.replay.check.route_checker import explain_returned
from delayboard.dead_letters.replay.check.targets import find_delay_route
from delayboard.dead_letters.replay.content import Content, prepare_replay
from delayboard.models import Interception, ReplayBatch, ReplayRoute, TargetMode
from topology.broker.amqp.pipeline import Pipeline
from topology.broker.errors import Conflict, NotFound, Refused, Unsupported
from topology.broker.management.client import Management
from topology.broker.properties.field_values import FieldError
from topology.definitions import Definitions
from topology.message import Publish, Route
from topology.operations.answers import TapCheck
from topology.operations.ownership import owning
from topology.patterns.pattern import ParamsError
from topology.provisioning.taps import tapped_exchanges

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

    @property
    def is_declared(self) -> bool:
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
        try:
            publish = prepare_replay(route, content.properties, content.body, name)
        except FieldError as error:
            raise Unsendable(f"Its properties cannot be edited: {error}.") from error
        if why := explain_returned(self.definitions, publish):
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
        # One that declares nothing needs no declaration.
        declared_at = None if len(route.declares) else 0.0
        is_tapped = route.exchange in self._tapped
        return PublishRoute(route, row.after_ms > 0, refusal, is_tapped, declared_at)

    def _declare(self, publish_route: PublishRoute) -> None:
        """What it needs is there, and ours. A broker that refuses it refuses its messages."""
        assert self.batch.topology is not None
        declares = Interception.without_replaced(
            publish_route.route.declares, self.batch.topology.broker
        )
        try:
            with owning(self.batch.topology, declares, self.definitions) as declared:
                self.pipeline.declare(declares)
                declared()
        except (Conflict, NotFound, Refused, Unsupported) as error:
            publish_route.refusal = str(error)
        publish_route.declared_at = time.monotonic()


class Unsendable(Exception):
    """The message was not sent and cannot be; the sentence says why."""
