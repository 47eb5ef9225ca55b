"""What other parameters of a topology would change in its broker, and what forbids it.

The switch of a key to another queue, through a `Detour`, may be called again after a kill (tried on
3.10, 4.0 and 4.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.definitions import Binding, Definitions, Identity, Queue, is_own_queue
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length
from topology.provisioning.plan import Plan, conflict_sentences, title
from topology.provisioning.replacement import QueueChange, Replacement, wait_sentence
from topology.routing.matching.delayed_exchange import kind_of
from topology.snapshot import Snapshot
from topology.transfer.interception import Detour


@dataclass(frozen=True)
class Removal(QueueChange):
    """`queue` is no longer defined by the new parameters."""

    @property
    def steps(self) -> tuple[str, ...]:
        name = self.queue.name
        return (
            f"Stop publishing to “{name}”. RabbitMQ drops messages to a queue that does not exist.",
            wait_sentence(name, self.messages, self.last_due_at),
            f"Delete “{name}”.",
        )


@dataclass(frozen=True)
class Edit:
    """`plan` creates what the new parameters need; `refusals` forbid all of it.

    `kept` are bindings that the new parameters do not need, for messages with former keys.
    """

    plan: Plan
    replacements: tuple[Replacement, ...] = ()
    removals: tuple[Removal, ...] = ()
    refusals: tuple[str, ...] = ()
    reroutes: tuple[Reroute, ...] = ()
    kept: tuple[Binding, ...] = ()

    @property
    def queues(self) -> tuple[Replacement | Removal, ...]:
        return (*self.replacements, *self.removals)

    @property
    def unchanged(self) -> str:
        """The sentence that the broker stays as it is; "" if it does not."""
        changed = self.plan.changes or self.queues or self.reroutes
        return "" if changed else "No object in the broker changes."

    @property
    def kept_sentences(self) -> tuple[str, ...]:
        return tuple(
            f"The {title(one)} stays, so that messages with this key arrive. Delete it in RabbitMQ "
            "when no message has this key."
            for one in self.kept
        )

    @property
    def outcome(self) -> str:
        """What was done and what the worker does, once it is carried out."""
        created = len(self.plan.changes)
        names = ", ".join(one.queue.name for one in self.queues)
        keys = ", ".join(f"“{one.binding.routing_key}”" for one in self.reroutes)
        sentences = (
            f"{count_of(created, 'object')} created." if created else "",
            f"The worker switches the messages with the key {keys} to another queue."
            if keys
            else "",
            f"The worker replaces or deletes {names}." if names else "",
        )
        return " ".join(filter(None, sentences))


def plan_edit(
    old: Definitions,
    plan: Plan,
    replacements: tuple[Replacement, ...],
    owned: Collection[Identity],
    snapshot: Snapshot,
) -> Edit:
    """`plan` and `replacements` are of the new definitions, `old` are those in force."""
    wanted = Definitions.of(change.object for change in plan.changes)
    # A former binding to the tap only copies what is no entry or exit any more.
    bindings = old.without_taps().bindings
    unneeded = [
        obj
        for obj in old
        if wanted.get(obj.identity) is None and (not isinstance(obj, Binding) or obj in bindings)
    ]
    wanted = wanted.without_taps()
    unneeded += _find_former_bindings(old, wanted, owned, snapshot)
    reroutes = tuple(find_reroutes((one for one in unneeded if isinstance(one, Binding)), wanted))
    former = {one.former.identity for one in reroutes}
    leftover = snapshot.declared.only(
        obj.identity for obj in unneeded if obj.identity not in former
    )
    kept = tuple(
        one
        for one in leftover
        if isinstance(one, Binding) and _can_remain(one, wanted, leftover, snapshot)
    )
    leftover = leftover.without(one.identity for one in kept)
    left = snapshot.definitions.without(former)
    removals = tuple(
        _make_removal(queue, snapshot, left)
        for queue in sorted(leftover.queues, key=lambda queue: queue.name)
        if queue.identity in owned
    )
    replaced = {one.queue.identity for one in replacements}
    others = Plan(tuple(one for one in plan.changes if one.object.identity not in replaced))
    rerouted = {one.binding.identity for one in reroutes}
    created = Plan(tuple(c for c in plan.select("create") if c.object.identity not in rerouted))
    in_use = (one.refusal for one in removals if one.refusal)
    refusals = (
        *conflict_sentences(others),
        *(one.refusal for one in replacements if one.refusal),
        *(one.refusal for one in reroutes if one.refusal),
        *_foreign_refusals(reroutes, owned, snapshot),
        # A binding of its own that is left over is the reason why a queue is in use.
        *(tuple(_leftover_refusals(leftover)) or in_use),
        *_chain_refusals(replacements, snapshot.definitions),
    )
    return Edit(created, replacements, removals, refusals, reroutes, kept)


def _find_former_bindings(
    old: Definitions, wanted: Definitions, owned: Collection[Identity], snapshot: Snapshot
) -> Iterator[Binding]:
    """Bindings that an earlier edit kept, and whose key leads to another queue now."""
    keys = {(one.source, one.routing_key) for one in wanted.bindings}
    for one in snapshot.declared.bindings:
        if one.identity not in owned or is_own_queue(one.destination):
            continue
        is_defined = old.get(one.identity) or wanted.get(one.identity)
        if not is_defined and (one.source, one.routing_key) in keys:
            yield one


def _can_remain(
    binding: Binding, wanted: Definitions, leftover: Definitions, snapshot: Snapshot
) -> bool:
    """Whether it can only take messages that no new binding takes: direct exchanges compare whole
    keys."""
    source = snapshot.declared.exchange(binding.source)
    goes = leftover.exchange(binding.source) or leftover.queue(binding.destination)
    keys = {one.routing_key for one in wanted.leaving(binding.source)}
    if source is None or goes or binding.routing_key in keys:
        return False
    return kind_of(source) == "direct" and binding.destination_is_queue


def _make_removal(queue: Queue, snapshot: Snapshot, left: Definitions) -> Removal:
    queue = snapshot.definitions.queue(queue.name) or queue
    messages, last = snapshot.count_waiting(queue)
    is_consumed = queue.name in snapshot.consumed
    refusals = _removal_refusals(queue, messages, left, is_consumed=is_consumed)
    return Removal(queue, messages, last, next(refusals, ""))


def _removal_refusals(
    queue: Queue, messages: int | None, found: Definitions, *, is_consumed: bool
) -> Iterator[str]:
    """`found` is in the broker once messages take their new ways."""
    name = queue.name
    if messages != 0 and queue.message_ttl_ms is None:
        yield (
            f"“{name}” is no longer needed but may hold messages without a TTL. Empty the queue "
            "first."
        )
    if is_consumed:
        yield f"Consumers of “{name}” take messages before they are due. Stop the consumers first."
    feeding = [one.name for one in found.dying_into("") if one.dead_letter_routing_key == name]
    if feeding := [*feeding, *(source for source in found.sources(name) if source)]:
        yield (
            f"“{name}” is no longer needed but receives messages from “{feeding[0]}”. Remove this "
            "route first."
        )


def _leftover_refusals(leftover: Definitions) -> Iterator[str]:
    """Refusals for bindings that would be left: between two of them a message would take both paths
    or none.
    """
    for obj in leftover:
        if isinstance(obj, Queue):
            continue
        yield (
            f"The change would remove the {title(obj)}, and messages that use it would be lost "
            "or doubled. Edit in smaller steps, or create a new topology and move the publishers."
        )
        return


def _foreign_refusals(
    reroutes: Iterable[Reroute], owned: Collection[Identity], snapshot: Snapshot
) -> Iterator[str]:
    for one in reroutes:
        identity = one.former.identity
        if identity not in owned and snapshot.declared.get(identity):
            yield (
                f"The change would remove the {title(one.former)}, which Delayboard did not "
                "create. Create a new topology and move the publishers."
            )


def _chain_refusals(replacements: tuple[Replacement, ...], found: Definitions) -> Iterator[str]:
    """A message that waits before a queue counts on the delay at its publish time."""
    for one in replacements:
        there = found.queue(one.queue.name)
        if there is None or there.message_ttl_ms == one.queue.message_ttl_ms:
            continue
        before = [
            queue.name
            for source in found.sources(there.name)
            for queue in found.dying_into(source)
            if queue.message_ttl_ms is not None and queue.name != there.name
        ]
        if before:
            yield (
                f"Messages wait in “{before[0]}” before “{there.name}”, so another delay would "
                "deliver them early or late. Create a new topology, then run "
                "“manage.py migrate_delays”."
            )
            return


@dataclass(frozen=True)
class Reroute:
    """`binding` leads to `old` now and to its own destination afterwards."""

    binding: Binding
    old: str

    @classmethod
    def read(cls, old: str, stored: Sequence[str]) -> Reroute:
        source, key, queue = stored
        return cls(Binding(source, queue, key), old)

    @property
    def stored(self) -> list[str]:
        """What `read` reads, beside the old queue."""
        return [self.binding.source, self.binding.routing_key, self.binding.destination]

    @property
    def former(self) -> Binding:
        return replace(self.binding, destination=self.old)

    @property
    def detour(self) -> Detour:
        """The detour of this reroute alone: others may lead to the same queue."""
        digest = sha256("\0".join([*self.stored, self.old]).encode()).hexdigest()
        new = self.binding.destination
        return Detour(f"{new}.rerouting-{digest[:8]}", self.old, new)

    @property
    def steps(self) -> tuple[str, ...]:
        key, queue = self.binding.routing_key, self.binding.destination
        return (
            f"Switch the key “{key}” of “{self.binding.source}” from “{self.old}” to “{queue}” "
            "through a temporary exchange. Each message reaches one of the two queues once.",
            "Delete the temporary exchange.",
        )

    @property
    def refusal(self) -> str:
        if byte_length(self.detour.alternate) <= LONGEST_NAME_BYTES:
            return ""
        return (
            f"The name “{self.binding.destination}” is too long for a temporary exchange beside "
            "it. Create a topology with shorter names."
        )


def find_reroutes(leftover: Iterable[Binding], wanted: Definitions) -> Iterator[Reroute]:
    """One for each binding of `leftover` whose key leads to another queue in `wanted`."""
    for former in leftover:
        if not former.destination_is_queue or former.arguments:
            continue
        leading = [
            one
            for one in wanted.leaving(former.source)
            if one.routing_key == former.routing_key and one.destination_is_queue
        ]
        if len(leading) == 1 and not leading[0].arguments:
            yield Reroute(leading[0], former.destination)


def carry_out(reroute: Reroute, management: Management) -> None:
    """Switch to the new queue; may be called again after a kill. Raises BrokerError."""
    detour = reroute.detour
    management.declare(detour.objects)
    if _is_bound(reroute.former, management):
        detour.enter(reroute.former, management)
    with suppress(NotFound):
        management.unbind(detour.switch)
    management.bind(reroute.binding)
    with suppress(NotFound):
        management.unbind(detour.entrance(reroute.binding))
    detour.remove(management)


def _is_bound(binding: Binding, management: Management) -> bool:
    try:
        found = management.bindings_to_queue(binding.destination)
    except NotFound:
        return False
    ends = (binding.source, binding.routing_key)
    return any((raw.get("source"), raw.get("routing_key")) == ends for raw in found)
