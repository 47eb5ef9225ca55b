"""What a replay publishes for a message, from its raw properties and its route."""

from __future__ import annotations

import time

from delayboard.dead_letters.replay.check.restricted_exchanges import RestrictedExchanges
from delayboard.dead_letters.replay.publish.stamp import (
    count_stated_replays,
    stamp_properties,
    strip_properties,
)
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import read_properties
from topology.definitions import Definitions
from topology.message import Publish, Route
from topology.provisioning.taps import tapped_exchanges


class Unsendable(Exception):
    """The message was not sent and cannot be; the sentence says why."""


class Outgoing:
    """`definitions` are those of the vhost when the run began. At the exchanges `tapped` only a tap
    of ours may receive a message: then a confirm does not prove delivery.
    """

    def __init__(self, definitions: Definitions) -> None:
        self.tapped = tapped_exchanges(definitions)
        self._restricted = RestrictedExchanges(definitions)
        self._checked_exchanges = self.tapped | self._restricted.exchanges

    def make(
        self, raw: bytes, body: bytes, route: Route, name: str, most_replays: int | None = None
    ) -> Publish:
        """The message without what dying added, under this replay id. Raises Unsendable, also for
        one whose header counts `most_replays`.
        """
        headers = (
            route.make_headers(time.time_ns() // 1_000_000) if route.due_header else route.headers
        )
        try:
            stripped = strip_properties(raw, headers)
            replays = count_stated_replays(stripped)
            properties = stamp_properties(stripped, name, replays + 1, headers)
        except FieldError as error:
            raise Unsendable(f"Its properties cannot be edited: {error}.") from error
        if most_replays is not None and replays >= most_replays:
            raise Unsendable(f"It was replayed {replays} times already, which is the limit.")
        if route.exchange not in self._checked_exchanges:
            return Publish(route.exchange, route.routing_key, properties, body)
        properties = read_properties(properties.raw)
        publish = Publish(route.exchange, route.routing_key, properties, body)
        if why := self._restricted.explain_refusal(publish):
            raise Unsendable(why)
        return publish
