"""The temporary queue in the place of one that is replaced, and the switches to it and back.

As in `topology.transfer.interception`, one binding decides where each message goes: while `.in`
is bound to the queue, its messages pass on to it; while it is not, the alternate exchange
`.held` takes them into the temporary queue. So no message takes both ways or none. Every function
may be called again after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue

SUFFIX = ".replacement"
# Called before each change of the broker.
Step: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class StandIn:
    """The objects that replace a queue meanwhile; the queue is given as defined."""

    queue: Queue

    @property
    def name(self) -> str:
        """Begins with the queue's own, so that policies by a prefix hold for it too."""
        return self.queue.name + SUFFIX

    @property
    def into(self) -> str:
        return f"{self.name}.in"

    @property
    def held(self) -> str:
        return f"{self.name}.held"

    @property
    def longest_name(self) -> str:
        return self.held

    @property
    def objects(self) -> Definitions:
        alternate = Arguments({"alternate-exchange": self.held})
        return Definitions.of(
            [
                Exchange(self.held, "fanout"),
                Exchange(self.into, "fanout", arguments=alternate),
                replace(self.queue, name=self.name),
                Binding(self.held, self.name, ""),
            ]
        )

    @property
    def switch(self) -> Binding:
        """While it is there, messages go to the queue itself."""
        return Binding(self.into, self.queue.name, "")


def switch_to(stand_in: StandIn, management: Management, step: Step) -> None:
    """From its end on, what is routed to the queue comes into the temporary one. Raises
    BrokerError."""
    objects = stand_in.objects
    for exchange in sorted(objects.exchanges, key=lambda exchange: exchange.name):
        step()
        management.declare_exchange(exchange)
    for queue in objects.queues:
        step()
        management.declare_queue(queue)
    for binding in objects.bindings:
        step()
        management.bind(binding)
    # Without the queue there is no binding to it either.
    with suppress(NotFound):
        for binding in list(_bindings_of(stand_in, management)):
            step()
            management.bind(stand_in.switch)
            step()
            management.bind(_entrance(stand_in, binding))
            step()
            management.unbind(binding)
        step()
        management.unbind(stand_in.switch)


def is_switched(stand_in: StandIn, management: Management) -> bool:
    """Whether nothing is bound to the queue itself. A consumer that starts may bind it again."""
    try:
        return not any(_bindings_of(stand_in, management))
    except NotFound:
        return True


def switch_back(stand_in: StandIn, management: Management, step: Step) -> None:
    """Bind the queue as the temporary one is bound, whoever bound it. Raises BrokerError."""
    entrances = []
    if _has_entrance(stand_in, management):
        step()
        management.bind(stand_in.switch)
        entrances = management.bindings_to_exchange(stand_in.into)
    for raw in entrances:
        entrance = _binding(raw, stand_in.into, is_queue=False)
        step()
        management.bind(
            replace(entrance, destination=stand_in.queue.name, destination_is_queue=True)
        )
        step()
        management.unbind(entrance)
    for exchange in (stand_in.into, stand_in.held):
        step()
        management.delete_exchange(exchange)


def _has_entrance(stand_in: StandIn, management: Management) -> bool:
    try:
        management.exchange(stand_in.into)
    except NotFound:
        return False
    return True


def _entrance(stand_in: StandIn, binding: Binding) -> Binding:
    return replace(binding, destination=stand_in.into, destination_is_queue=False)


def _bindings_of(stand_in: StandIn, management: Management) -> Iterator[Binding]:
    """Those to the queue itself, but for the default exchange's and the switch. Raises NotFound."""
    for raw in management.bindings_to_queue(stand_in.queue.name):
        if raw.get("source") not in ("", stand_in.into):
            yield _binding(raw, stand_in.queue.name, is_queue=True)


def _binding(raw: dict[str, object], destination: str, *, is_queue: bool) -> Binding:
    arguments = raw.get("arguments")
    return Binding(
        str(raw.get("source", "")),
        destination,
        str(raw.get("routing_key", "")),
        destination_is_queue=is_queue,
        arguments=Arguments(arguments if isinstance(arguments, dict) else {}),
    )
