"""A message that an operator publishes, where it would arrive and when, and who would see that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from analytics.models import Firehose
from topology.definitions import Definitions
from topology.delays import milliseconds
from topology.message import Forwarder, Route
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import forwarders_at
from topology.routing.walk import Walk, walk
from topology.snapshot import Snapshot

NOTHING = Definitions()
NOT_OBSERVED = (
    "Delivery is not observed for this topology: no tap records messages that leave its delays."
)


@dataclass(frozen=True)
class OutgoingMessage:
    """`properties` are by their AMQP names.

    Through a topology, `note` is a remark on the requested delay.
    """

    route: Route
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None
    target: str = ""
    note: str = ""
    delay: timedelta = timedelta(0)
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def waits(self) -> timedelta:
        """How long its topology delays it, rounded as the topology does."""
        if self.topology is None:
            return timedelta(0)
        return self.topology.pattern.achievable(self.topology.parsed, self.delay)


@dataclass(frozen=True)
class Prediction:
    """`arrives_after` and `queue` of the first delivery, None and "" when it would be lost.

    `found` is what it was worked out on.
    """

    walk: Walk
    found: Definitions
    sentence: str
    arrives_after: timedelta | None
    queue: str

    @property
    def is_good(self) -> bool:
        return self.arrives_after is not None

    @property
    def hops(self) -> list[dict[str, Any]]:
        """The queues of the copy that arrives first, to be stored: when it reaches each (ms)."""
        first = min(self.walk.delivered, key=lambda outcome: outcome.after, default=None)
        return [
            {"queue": hop.queue, "after_ms": milliseconds(hop.after), "is_wait": bool(hop.wait)}
            for hop in (first.hops if first else ())
        ]


def predict(
    snapshot: Snapshot,
    exchange: str,
    routing_key: str,
    *,
    headers: dict[str, Any] | None = None,
    expiration: str | None = None,
    declares: Definitions = NOTHING,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
    note: str = "",
) -> Prediction:
    """Walk the current definitions plus what `declares` adds, without our own taps.

    `forwarders` are assumed to run; times in `headers` count from `now_ms`, the time of the
    publish. `note` begins the sentence.
    """
    walked = walk(
        snapshot.definitions.without_taps() | declares,
        exchange,
        routing_key,
        version=snapshot.version_tuple,
        headers=headers,
        expiration=expiration,
        consumed=snapshot.consumed,
        forwarders=forwarders,
        now_ms=now_ms,
    )
    first = min(walked.delivered, key=lambda outcome: outcome.after, default=None)
    return Prediction(
        walk=walked,
        found=snapshot.definitions,
        sentence=" ".join([note, *(outcome.sentence for outcome in walked.outcomes)]).strip(),
        arrives_after=first.after if first else None,
        queue=first.queue if first else "",
    )


def predict_message(broker: Broker, snapshot: Snapshot, outgoing: OutgoingMessage) -> Prediction:
    """The prediction for a message that is published at this moment."""
    now_ms, route = time.time_ns() // 1_000_000, outgoing.route
    return predict(
        snapshot,
        route.exchange,
        route.routing_key,
        headers={**outgoing.headers, **route.make_headers(now_ms)},
        expiration=outgoing.properties.get("expiration"),
        declares=route.declares,
        forwarders=forwarders_at(broker),
        now_ms=now_ms,
        note=outgoing.note,
    )


@dataclass(frozen=True)
class Observer:
    """The topology that records the message, if one does; `unobservable_why` is "" if it records
    the delivery too. `sentence` says before the publish how far the message is followed.
    `sees_entry`: a tap records when the message enters the delay.
    """

    topology: Topology | None
    unobservable_why: str = ""
    by_firehose: bool = False
    sees_entry: bool = True

    @property
    def sentence(self) -> str:
        if self.by_firehose:
            return "Delayboard follows the message until a consumer takes it (firehose)."
        if not self.unobservable_why and not self.sees_entry:
            return (
                "Delayboard observes the publish and the delivery. The entry into the delay is not "
                "observed, so the due time counts from the publish."
            )
        if not self.unobservable_why:
            return "Delayboard follows the message until delivery."
        end = "it enters the delay" if has_entry_tap(self.topology) else "the publish"
        return f"Delayboard follows the message only until {end}. {self.unobservable_why}"


def find_observer(
    broker: Broker, through: Topology | None, target: str, prediction: Prediction
) -> Observer:
    """`through` is the topology through which the message is published to `target`, if any."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
    topology = through or find_tapped(list(applied), prediction.walk)
    if not prediction.is_good:
        return Observer(topology, "The prediction has no delivery.")
    if topology is None:
        return Observer(
            None,
            f"No tap of an applied topology records deliveries to {prediction.queue}. Publish "
            "through an applied topology to observe the delivery.",
        )
    if _sees_arrivals(topology, target, prediction.found):
        is_delayed = bool(prediction.arrives_after)
        return Observer(topology, sees_entry=has_entry_tap(topology) or not is_delayed)
    # It records deliveries of delayed messages only.
    if prediction.arrives_after and Firehose.objects.filter(broker=broker).exists():
        return Observer(topology, by_firehose=True)
    return Observer(topology, NOT_OBSERVED)


def has_entry_tap(topology: Topology | None) -> bool:
    return topology is not None and any(tap.phase == "entry" for tap in topology.taps)


def find_tapped(topologies: list[Topology], walked: Walk) -> Topology | None:
    """The topology whose tap would see the message arrive, if there is one."""
    last = [outcome.hops[-1] for outcome in walked.delivered]
    for topology in topologies:
        for tap in topology.taps:
            passes = {hop.routing_key for hop in last if hop.exchange == tap.exchange}
            if tap.phase == "exit" and passes and (tap.routing_key in {"#", *passes}):
                return topology
    return None


def _sees_arrivals(topology: Topology, target: str, found: Definitions) -> bool:
    """Whether a tap sees what arrives at this target.

    A direct exchange copies to a tap what it was bound for by name, and nothing for “#”."""
    direct = {exchange.name for exchange in found.exchanges if exchange.type == "direct"}
    return any(
        tap.phase == "exit"
        and tap.destination in ("", target)
        and not (tap.routing_key == "#" and tap.exchange in direct)
        for tap in topology.taps
    )
