"""The temporary queue in the place of one that is replaced, and the switches to it and back.

Every function may be called again after a kill, and raises BrokerError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Queue
from topology.transfer.detour import Detour

SUFFIX = ".replacement"


@dataclass(frozen=True)
class StandIn:
    """The objects that replace a queue meanwhile; the queue is given as defined."""

    queue: Queue

    @property
    def name(self) -> str:
        """Begins with the queue's own, so that policies by a prefix hold for it too."""
        return self.queue.name + SUFFIX

    @property
    def detour(self) -> Detour:
        return Detour(self.name, self.queue.name, self.name)


def switch_to(stand_in: StandIn, management: Management) -> None:
    """From its end on, what is routed to the queue comes into the temporary one."""
    detour = stand_in.detour
    management.declare_queue(replace(stand_in.queue, name=stand_in.name))
    management.declare(detour.objects)
    # Without the queue there is no binding to it either.
    with suppress(NotFound):
        for binding in list(_bindings_of(stand_in, management)):
            detour.enter(binding, management)
        management.unbind(detour.switch)


def is_switched(stand_in: StandIn, management: Management) -> bool:
    """Whether nothing is bound to the queue itself. A consumer that starts may bind it again."""
    try:
        return not any(_bindings_of(stand_in, management))
    except NotFound:
        return True


def switch_back(stand_in: StandIn, management: Management) -> None:
    """Bind the queue as the temporary one is bound, whoever bound it."""
    detour, entrances = stand_in.detour, []
    with suppress(NotFound):
        management.exchange(detour.into)
        entrances = management.bindings_to_exchange(detour.into)
    if entrances:
        management.bind(detour.switch)
    for raw in entrances:
        entrance = _binding(raw, detour.into, is_queue=False)
        management.bind(replace(entrance, destination=detour.old, destination_is_queue=True))
        management.unbind(entrance)
    detour.remove(management)


def _bindings_of(stand_in: StandIn, management: Management) -> Iterator[Binding]:
    """Those to the queue itself, but for the default exchange's and the switch. Raises NotFound."""
    for raw in management.bindings_to_queue(stand_in.queue.name):
        if raw.get("source") not in ("", stand_in.detour.into):
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
