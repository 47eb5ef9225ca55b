"""Which queues can be replaced by one with other arguments, and the switches of their bindings.

RabbitMQ cannot change the arguments of a queue, and two queues cannot have one name. So a
temporary queue with the new arguments takes the new messages, the old queue keeps its messages
until RabbitMQ dead-letters them when they are due, and then the name is free. No message is
published again: none is doubled, hurried or late, and each keeps its x-death history. A switch may
be called again after a kill, and raises BrokerError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.definitions import Arguments, Binding, Identity, Queue
from topology.delays import format_delay
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length
from topology.provisioning.plan import Plan
from topology.snapshot import Snapshot
from topology.transfer.interception import Detour

SUFFIX = ".replacement"


@dataclass(frozen=True)
class QueueChange:
    """A queue that is replaced once it is empty, its waiting messages, and why it must stay.

    `messages` is None when the broker does not report it; `last_due_at` is when the last one
    leaves.
    """

    queue: Queue
    messages: int | None
    last_due_at: datetime | None
    refusal: str


@dataclass(frozen=True)
class Replacement(QueueChange):
    """`queue` is as it should be."""

    @property
    def steps(self) -> tuple[str, ...]:
        name, temporary = self.queue.name, StandIn(self.queue).name
        ttl = format_delay(self.queue.message_ttl or timedelta(0))
        return (
            f"Declare the temporary queue “{temporary}” with the planned arguments.",
            f"Switch all bindings of “{name}” to it. New messages wait there for their whole "
            "delay.",
            wait_sentence(name, self.messages, self.last_due_at),
            f"Delete “{name}”, and declare it with the planned arguments.",
            f"Switch all bindings back to “{name}”.",
            f"Wait until “{temporary}” is empty, at most {ttl}, and delete it.",
        )


def wait_sentence(name: str, messages: int | None, last_due_at: datetime | None) -> str:
    """The step in which RabbitMQ empties a queue; `messages` None where the number is unknown."""
    if messages == 0:
        return f"Wait until “{name}” is empty. It holds no messages now."
    many = "an unknown number of messages" if messages is None else count_of(messages, "message")
    until = f", the last at {last_due_at:%Y-%m-%d %H:%M:%S} UTC" if last_due_at else ""
    return f"Wait until “{name}” is empty. RabbitMQ dead-letters {many}{until}."


def plan_replacements(
    plan: Plan, owned: Collection[Identity], snapshot: Snapshot
) -> tuple[Replacement, ...]:
    """One for each queue of the plan that exists with other arguments."""
    found = snapshot.definitions
    return tuple(
        Replacement(
            change.object,
            *snapshot.count_waiting(there),
            next(_refusals(change.object, there, owned, snapshot), ""),
        )
        for change in plan.select("conflict")
        if isinstance(change.object, Queue) and (there := found.queue(change.object.name))
    )


def _refusals(
    wanted: Queue, there: Queue, owned: Collection[Identity], snapshot: Snapshot
) -> Iterator[str]:
    name, found = wanted.name, snapshot.definitions
    numbers = snapshot.numbers.get(name)
    if wanted.identity not in owned:
        yield (
            f"Delayboard did not create “{name}”, so it does not delete it. Delete the queue in "
            "RabbitMQ when it is empty, then try again."
        )
    if wanted.message_ttl_ms is None:
        yield (
            f"The planned “{name}” has no message TTL, so messages would not leave a temporary "
            "queue. Stop publishers and consumers, empty and delete the queue, then try "
            "again."
        )
    dying = found.dying_into("")
    is_dead_lettered = any(queue.dead_letter_routing_key == name for queue in dying)
    if is_dead_lettered or not any(found.sources(name)):
        yield (
            f"Messages reach “{name}” by its name, and RabbitMQ drops them while the queue does "
            "not exist. Stop the publishers until the queue is empty, delete it, then try "
            "again."
        )
    if numbers is not None and numbers.consumers:
        yield f"Consumers of “{name}” take messages before they are due. Stop the consumers first."
    exchange = wanted.dead_letter_exchange
    if exchange and found.exchange(exchange) is None:
        yield (
            f"The exchange “{exchange}” does not exist, so messages would be lost after their "
            "delay. Create the exchange first."
        )
    if numbers is None or numbers.messages != 0:
        yield from _harm_to_waiting(wanted, there)
    if byte_length(StandIn(wanted).detour.alternate) > LONGEST_NAME_BYTES:
        yield (
            f"The name “{name}” is too long for a temporary queue beside it. Create a topology "
            "with a shorter name."
        )


def _harm_to_waiting(wanted: Queue, there: Queue) -> Iterator[str]:
    """Why the messages in the old queue must not just wait for their end."""
    name = wanted.name
    if there.message_ttl_ms is None:
        yield (
            f"“{name}” holds messages and has no message TTL, so it does not become empty. Move "
            "its messages, then replace it."
        )
    ends = (there.dead_letter_exchange, there.dead_letter_routing_key)
    planned = (wanted.dead_letter_exchange, wanted.dead_letter_routing_key)
    if ends != planned:
        yield (
            f"“{name}” holds messages that RabbitMQ dead-letters to {_place(*ends)} instead of "
            f"{_place(*planned)}. Move its messages or wait for the last, then replace it."
        )
    if "x-expires" in there.arguments:
        yield (
            f"“{name}” holds messages, and RabbitMQ deletes it with them when its x-expires ends. "
            "Move its messages, then replace it."
        )


def _place(exchange: str | None, key: str | None) -> str:
    if exchange is None:
        return "no exchange"
    where = f"the exchange “{exchange}”" if exchange else "the default exchange"
    return f"{where} with key “{key}”" if key is not None else where


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
    """Route what is for the queue into the temporary one, from the end of this call on."""
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
    """The bindings to the queue itself, but for the default exchange's and the switch. Raises
    NotFound.
    """
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
