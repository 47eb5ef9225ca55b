"""What a queue move publishes for each message of its queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayboard.dead_letters.replay.batch.options import read_batch_options
from delayboard.dead_letters.replay.check.restricted_exchanges import RestrictedExchanges
from delayboard.dead_letters.replay.check.targets import Targets
from delayboard.dead_letters.replay.publish.stamp import (
    count_stated_replays,
    stamp_properties,
    strip_properties,
)
from delayboard.models import ReplayBatch
from delayboard.models.replay import replay_id
from topology.broker.amqp.deliveries import Arrival
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import read_properties
from topology.definitions import Definitions
from topology.message import Publish
from topology.provisioning.taps import tapped_exchanges
from topology.routing.matching.index import Index

DELAY = (
    "A queue cannot be moved into a delay. Choose another target, or park the queue and replay it."
)


class Unfit(Exception):
    """The message cannot be sent; the sentence says why."""


@dataclass
class OutgoingMessages:
    """`definitions` are those of the vhost, looked at when the run began. Raises OptionError."""

    batch: ReplayBatch
    definitions: Definitions
    _mark: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._targets = Targets(
            self.batch.broker,
            read_batch_options(self.batch),
            Index(self.definitions.without_taps()),
        )
        self._mark = self.batch.uid.hex.encode() + b"-"
        self._tapped = tapped_exchanges(self.definitions)
        self._restricted = RestrictedExchanges(self.definitions)
        self._looked_into = self._restricted.exchanges | self._tapped

    def is_own(self, arrival: Arrival) -> bool:
        """Whether this batch has sent it: it came back."""
        return self._mark in arrival.raw

    def is_tapped(self, publish: Publish) -> bool:
        """Whether only a tap of ours may receive it: then a confirm does not prove delivery."""
        return publish.exchange in self._tapped

    def publish(self, arrival: Arrival, number: int) -> Publish:
        """What is sent, under the replay id of this number. Raises Unfit."""
        try:
            stripped = strip_properties(arrival.raw)
        except FieldError as error:
            raise Unfit(f"Its properties cannot be edited: {error}.") from error
        replays = count_stated_replays(stripped)
        if replays >= self.batch.most_replays:
            raise Unfit(f"It was replayed {replays} times already, which is the limit.")
        aim = self._targets.shared or self._targets.choose(arrival.message.headers)
        if aim.target is None or aim.way is not None:
            raise Unfit(aim.refusal or DELAY)
        exchange, key = aim.target.exchange, aim.target.routing_key
        properties = stamp_properties(stripped, replay_id(self.batch.uid, number), replays + 1)
        if exchange not in self._looked_into:
            return Publish(exchange, key, properties, arrival.body)
        publish = Publish(exchange, key, read_properties(properties.raw), arrival.body)
        if why := self._restricted.explain_refusal(publish):
            raise Unfit(why)
        return publish
