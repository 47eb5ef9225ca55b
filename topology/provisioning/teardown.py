"""Taking a topology away again: only what our plan created, and not over messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime

from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.definitions import (
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Identity,
    Queue,
    is_tap,
)
from topology.provisioning.plan import ends
from topology.snapshot import QueueNumbers, Snapshot
from topology.transfer.interception import explain_open


@dataclass(frozen=True)
class Occupied:
    """A queue that still contains messages; `latest_due_at` is when the last of them would leave.

    `messages` is None when the broker does not report it, as in the seconds after a declare; then
    `latest_due_at` is None too.
    """

    queue: str
    messages: int | None
    latest_due_at: datetime | None


@dataclass(frozen=True)
class Teardown:
    """What would be deleted, in order, what stays because it is not ours, what is in the way.

    `foreign` are bindings of others at what is ours, and queues and exchanges that stay and hand
    on into it: while there are any, nothing may be deleted. Nor may it while Delayboard takes the
    messages of the queues `intercepted`, which a detour leads from its exchanges to itself.
    """

    deletes: tuple[BrokerObject, ...]
    keeps: tuple[BrokerObject, ...]
    occupied: tuple[Occupied, ...]
    foreign: tuple[BrokerObject, ...] = ()
    intercepted: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        return sum(found.messages or 0 for found in self.occupied)

    @property
    def is_unknown(self) -> bool:
        """Whether the broker does not report the messages of one of the queues."""
        return any(found.messages is None for found in self.occupied)

    @property
    def messages_text(self) -> str:
        """A number of messages in words: "3 messages", "at least 3 messages" or "an unknown number
        of messages".
        """
        number = self.messages
        if not number and self.is_unknown:
            return "an unknown number of messages"
        words = count_of(number, "message")
        return f"at least {words}" if self.is_unknown else words

    @property
    def obstacles(self) -> list[str]:
        """Sentences on what forbids to delete anything."""
        changes = [explain_open(name) for name in self.intercepted]
        return changes + [_foreign_sentence(obj) for obj in self.foreign]


def plan_teardown(
    wanted: Definitions,
    owned: Collection[Identity],
    snapshot: Snapshot,
    *,
    disposable: Collection[str] = (),
) -> Teardown:
    """Pure. Messages in the queues named in `disposable` are not in the way.

    What something foreign is bound to, or from, is kept: deleting it would cut that binding. So
    is what a queue or exchange that stays leads into, by a policy too: it would lose messages.
    """
    present = [t for t in wanted if snapshot.declared.get(t.identity) is not None]
    there = [t for t in present if t.identity in owned]
    expected = {*owned, *(obj.identity for obj in wanted)}
    ours = {obj.identity for obj in there}
    touching = [b for b in snapshot.declared.bindings if not ours.isdisjoint(ends(b))]
    binding = [b for b in touching if not is_tap(b.destination) and b.identity not in expected]
    foreign = sorted(
        [*binding, *_find_sources(ours, snapshot.definitions)], key=lambda t: t.identity
    )
    needed = {end for obj in foreign for end in (*ends(obj), _leads_into(obj))}
    deletes = sorted((t for t in there if t.identity not in needed), key=_order)
    keeps = [t for t in present if t not in deletes]
    occupied = [
        held
        for obj in deletes
        if isinstance(obj, Queue) and obj.name not in disposable
        if (held := _make_occupied(obj, snapshot)) is not None
    ]
    taken = {b.destination for b in touching if b.destination in snapshot.intercepted.values()}
    return Teardown(
        tuple(deletes), tuple(keeps), tuple(occupied), tuple(foreign), tuple(sorted(taken))
    )


def with_depths(snapshot: Snapshot, depths: Mapping[str, int]) -> Snapshot:
    """The snapshot with newer counts; messages it reports as held separately stay counted."""
    numbers = dict(snapshot.numbers)
    for name, ready in depths.items():
        known = numbers.get(name, QueueNumbers())
        beside = max(0, (known.messages or 0) - (known.ready or 0))
        numbers[name] = replace(known, messages=ready + beside)
    return replace(snapshot, numbers=numbers)


def tear_down(
    teardown: Teardown,
    management: Management,
    pulse: Callable[[int, int], None],
    *,
    disposable: Collection[str] = (),
    even_with_messages: bool = False,
) -> None:
    """Delete in order. Raises BrokerError; what was deleted by then stays deleted.

    Numbers in a snapshot are seconds old, so classic queues are deleted with if-empty (quorum
    queues do not support it: 540, 3.10.8 to 4.3.5).
    """
    for done, obj in enumerate(teardown.deletes, start=1):
        if isinstance(obj, Queue):
            careless = even_with_messages or obj.name in disposable or obj.type != "classic"
            management.delete_queue(obj.name, only_if_empty=not careless)
        elif isinstance(obj, Exchange):
            management.delete_exchange(obj.name)
        else:
            management.unbind(obj)
        pulse(done, len(teardown.deletes))


def _find_sources(ours: AbstractSet[Identity], found: Definitions) -> list[BrokerObject]:
    """The queues and exchanges that are not ours and hand on into what is; taps hold copies."""
    handing: list[Exchange | Queue] = [*found.exchanges, *found.queues]
    leading = (t for t in handing if _leads_into(t) in ours and t.identity not in ours)
    return [t for t in leading if isinstance(t, Exchange) or not is_tap(t.name)]


def _leads_into(obj: BrokerObject) -> Identity | None:
    """The dead-letter target of a queue, or the alternate exchange of an exchange.

    None when nothing states it: through the default exchange without a dead-letter routing key, a
    queue dead-letters each message by the message's own key.
    """
    if isinstance(obj, Exchange):
        alternate = obj.arguments.text("alternate-exchange")
        return ("exchange", alternate) if alternate else None
    if isinstance(obj, Binding) or obj.dead_letter_exchange is None:
        return None
    if obj.dead_letter_exchange:
        return ("exchange", obj.dead_letter_exchange)
    key = obj.dead_letter_routing_key
    return ("queue", key) if key else None


def _foreign_sentence(obj: BrokerObject) -> str:
    if isinstance(obj, Binding):
        kind = "queue" if obj.destination_is_queue else "exchange"
        key = f" with the key “{obj.routing_key}”" if obj.routing_key else ""
        return (
            f"The {kind} “{obj.destination}” is bound to the exchange “{obj.source}”{key}. "
            "Unbind it first."
        )
    kind, name = _leads_into(obj) or ("", "")
    does = (
        f"The queue “{obj.name}” dead-letters into"
        if isinstance(obj, Queue)
        else f"The exchange “{obj.name}” sends unroutable messages to"
    )
    return f"{does} the {kind} “{name}”. Delete or change it first."


def _order(obj: BrokerObject) -> tuple[int, int, Identity]:
    """Delay queues, the longest wait first, other queues, bindings, exchanges.

    Messages go down a chain of delays, so that one which cannot be deleted still has its way on.
    A queue takes its bindings along, and what dies meanwhile finds its way; were the bindings
    first, it would be lost.
    """
    if isinstance(obj, Queue):
        waits = obj.message_ttl_ms
        return (1, 0, obj.identity) if waits is None else (0, -waits, obj.identity)
    return (2 if isinstance(obj, Binding) else 3), 0, obj.identity


def _make_occupied(queue: Queue, snapshot: Snapshot) -> Occupied | None:
    messages, latest_due_at = snapshot.count_waiting(queue)
    # RabbitMQ itself checks that a classic queue is empty.
    if messages == 0 or (messages is None and queue.type == "classic"):
        return None
    return Occupied(queue.name, messages, None if messages is None else latest_due_at)
