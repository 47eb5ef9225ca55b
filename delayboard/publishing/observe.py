"""How far Delayboard can follow a message that it publishes, and why no further."""

from __future__ import annotations

from dataclasses import dataclass

from analytics.models import Firehose
from delayboard.publishing.predict import Prediction
from topology.definitions import Definitions
from topology.models import Broker, State, Topology
from topology.routing.walk import Walk

NOT_OBSERVED = (
    "Delivery is not observed for this topology: no tap records messages that leave its delays."
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
