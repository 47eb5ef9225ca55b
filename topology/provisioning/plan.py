"""The difference between what should exist and what does: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topology.content.text import count_of
from topology.definitions import (
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Identity,
    Queue,
    show_value,
)
from topology.delays import format_ms
from topology.snapshot import Snapshot

Sign = Literal["create", "present", "conflict"]


@dataclass(frozen=True)
class Difference:
    """One argument or attribute in which a declared object differs from the wanted one."""

    name: str
    wanted: str
    found: str


@dataclass(frozen=True)
class Change:
    """The result for one object: to be created, present already, or in conflict."""

    sign: Sign
    object: BrokerObject
    differences: tuple[Difference, ...] = ()

    @property
    def title(self) -> str:
        ttl = self.object.message_ttl_ms if isinstance(self.object, Queue) else None
        return title(self.object) + ("" if ttl is None else f", TTL {format_ms(ttl)}")


@dataclass(frozen=True)
class Plan:
    """Changes in the order in which they are applied."""

    changes: tuple[Change, ...]

    def select(self, sign: Sign) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.sign == sign)

    @property
    def is_applicable(self) -> bool:
        return not self.select("conflict")

    @property
    def summary(self) -> str:
        """How many objects it adds, by kind, and what happens to those that exist."""
        kinds = Counter(type(change.object).__name__.lower() for change in self.select("create"))
        parts = [count_of(number, kind) for kind, number in sorted(kinds.items())]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        adds = f"Adds {listed}" if listed else "Adds nothing"
        if conflicts := len(self.select("conflict")):
            return f"{adds}; conflicts with {count_of(conflicts, 'object')}."
        return f"{adds}; changes nothing that exists."

    @property
    def is_empty(self) -> bool:
        return not self.select("create") and self.is_applicable


def make_plan(wanted: Definitions, snapshot: Snapshot) -> Plan:
    """Compare with what was declared, not with what policies make of it.

    Arguments cannot be changed in a broker, so a difference is a conflict and nothing of
    the plan is applied.
    """
    return compare(wanted, snapshot.declared)


def compare(wanted: Definitions, declared: Definitions) -> Plan:
    """The same for what was declared, without a snapshot around it."""
    made = frozenset(obj.identity for obj in wanted)
    return Plan(tuple(_change(obj, declared, made) for obj in wanted))


def _change(wanted: BrokerObject, declared: Definitions, made: Collection[Identity]) -> Change:
    """A binding between objects that do not exist and are not created is a conflict."""
    found = declared.get(wanted.identity)
    if found is None:
        unbound = [end for end in ends(wanted) if end not in made and declared.get(end) is None]
        missing = tuple(Difference(f"{kind} {name}", "exists", "missing") for kind, name in unbound)
        return Change("conflict" if missing else "create", wanted, missing)
    differences = tuple(_differences(wanted, found))
    return Change("conflict" if differences else "present", wanted, differences)


def _differences(wanted: BrokerObject, found: BrokerObject) -> Iterable[Difference]:
    if isinstance(wanted, Binding):
        return
    for name, value in attributes(wanted).items():
        there = attributes(found).get(name)
        if value != there:
            yield Difference(name, show_value(value), show_value(there))
    if isinstance(wanted, Queue) and isinstance(found, Queue):
        wanted, found = wanted.with_type(), found.with_type()
    names = sorted({*wanted.arguments, *found.arguments})
    for name in names:
        ours, theirs = wanted.arguments.get(name), found.arguments.get(name)
        if (type(ours), ours) != (type(theirs), theirs):
            yield Difference(name, show_value(ours), show_value(theirs))


def conflict_sentences(plan: Plan) -> list[str]:
    """The conflicts as sentences, for those who see no table of them."""
    return [
        f"The {difference.name} does not exist, so Delayboard cannot create the {change.title}."
        if isinstance(change.object, Binding)
        else f"The {change.title} already exists with {difference.name} {difference.found} instead "
        f"of {difference.wanted}."
        for change in plan.select("conflict")
        for difference in change.differences
    ]


def ends(obj: BrokerObject) -> tuple[tuple[str, str], ...]:
    """The identities of what a binding binds; nothing for an exchange or a queue.

    An exchange and a queue may share a name.
    """
    if not isinstance(obj, Binding):
        return ()
    kind = "queue" if obj.destination_is_queue else "exchange"
    return ("exchange", obj.source), (kind, obj.destination)


def attributes(obj: BrokerObject) -> Mapping[str, Any]:
    """What a declare states beside the arguments."""
    match obj:
        case Exchange():
            return {
                "type": obj.type,
                "durable": obj.durable,
                "auto-delete": obj.auto_delete,
                "internal": obj.internal,
            }
        case Queue():
            return {"durable": obj.durable, "auto-delete": obj.auto_delete}
    return {}


def title(obj: BrokerObject) -> str:
    match obj:
        case Exchange():
            return f"{obj.type} exchange {obj.name}"
        case Queue():
            return f"{obj.type} queue {obj.name}"
        case Binding():
            kind = "queue" if obj.destination_is_queue else "exchange"
            key = f" with key {obj.routing_key}" if obj.routing_key else ""
            return f"binding from {obj.source} to {kind} {obj.destination}{key}"
