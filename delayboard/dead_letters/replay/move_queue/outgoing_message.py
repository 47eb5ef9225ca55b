"""What a queue move publishes for each message of its queue."""

from __future__ import annotations

from delayboard.dead_letters.replay.batch.options import read_batch_options
from delayboard.dead_letters.replay.check.targets import Targets
from delayboard.dead_letters.replay.publish.outgoing import Outgoing, Unsendable
from delayboard.models import ReplayBatch
from delayboard.models.replay import replay_id
from topology.broker.amqp.deliveries import Arrival
from topology.definitions import Definitions
from topology.message import Publish, Route
from topology.routing.matching.index import Index

DELAY = (
    "A queue cannot be moved into a delay. Choose another target, or park the queue and replay it."
)


class OutgoingMessages:
    """`definitions` are those of the vhost, looked at when the run began. Raises OptionError."""

    def __init__(self, batch: ReplayBatch, definitions: Definitions) -> None:
        index = Index(definitions.without_taps())
        self._batch = batch
        self._targets = Targets(batch.broker, read_batch_options(batch), index)
        self._mark = batch.uid.hex.encode() + b"-"
        self._outgoing = Outgoing(definitions)

    def is_own(self, arrival: Arrival) -> bool:
        """Whether this batch has sent it: it came back."""
        return self._mark in arrival.raw

    def is_tapped(self, publish: Publish) -> bool:
        """Whether only a tap of ours may receive it: then a confirm does not prove delivery."""
        return publish.exchange in self._outgoing.tapped

    def publish(self, arrival: Arrival, number: int) -> Publish:
        """What is sent, under the replay id of this number. Raises Unsendable."""
        aim = self._targets.shared or self._targets.choose(arrival.message.headers)
        if aim.target is None or aim.route is not None:
            raise Unsendable(aim.refusal or DELAY)
        route = Route(aim.target.exchange, aim.target.routing_key)
        name, most = replay_id(self._batch.uid, number), self._batch.most_replays
        return self._outgoing.make(arrival.raw, arrival.body, route, name, most)
