"""What of a finding's remedy Delayboard can apply itself: a set of objects, and policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from topology.definitions import (
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Identity,
    Queue,
)
from topology.findings.finding import Finding
from topology.findings.hit import (
    NUMBERS,
    TARGET_KEY,
    TARGET_QUEUE,
    Declaration,
    Policy,
    Replacement,
    name_dead_letter_queue,
)
from topology.snapshot import Snapshot


@dataclass(frozen=True)
class Remedy:
    """`queue` gets the messages where a person may choose it, "" where the remedy says it.

    Those `replaced` are deleted and declared again with other arguments or attributes, as RabbitMQ
    changes none.
    """

    objects: Definitions
    policies: tuple[Policy, ...]
    queue: str = ""
    replaced: tuple[Exchange | Queue, ...] = ()

    @property
    def label(self) -> str:
        """The label of the button."""
        exchanges, queues = self.objects.exchanges, self.objects.queues
        kinds = [word for word, found in (("exchange", exchanges), ("queue", queues)) if found]
        if not kinds and self.objects.bindings:
            kinds = ["binding"]
        steps = [f"create {' and '.join(kinds)}"] if kinds else []
        if self.policies:
            steps.append("set policy")
        if self.replaced:
            again = {"queue" if isinstance(one, Queue) else "exchange" for one in self.replaced}
            steps.append(f"replace {' and '.join(sorted(again))}")
        return " and ".join(steps).capitalize()

    @property
    def digest(self) -> str:
        """What a page shows of those replaced, to be repeated by whoever confirms it."""
        return sha256(repr(self.replaced).encode()).hexdigest()

    @property
    def identities(self) -> frozenset[Identity]:
        """Identities of the objects that the remedy declares."""
        return frozenset(one.identity for one in (*self.objects, *self.replaced))


def make_remedy(finding: Finding, snapshot: Snapshot, queue: str = "") -> Remedy | None:
    """With this queue, else a new one of its own, where a person may choose.

    None where the remedy is another one than declaring objects and setting policies.
    """
    objects = [one.object for one in finding.repairs if isinstance(one, Declaration)]
    found = [one for one in finding.repairs if isinstance(one, Replacement)]
    policies = [one.policy for one in found if one.policy is not None]
    replaced = tuple(one.wanted for one in found if one.wanted is not None)
    needs_number = any(set(NUMBERS) & set(one.definition.values()) for one in policies)
    if needs_number or not (objects or policies or replaced):
        return None
    is_asking = any(_asks(one) for one in (*objects, *policies))
    chosen = (queue or _propose(objects, finding)) if is_asking else ""
    if is_asking and chosen == TARGET_QUEUE:
        return None
    filled = [_fill(one, chosen, snapshot) for one in objects]
    if any(one is None for one in filled):
        return None
    if is_asking and snapshot.declared.queue(chosen) is None:
        filled.append(Queue(chosen, arguments=Arguments({"x-queue-type": "classic"})))
    given = tuple(_name_queue(one, chosen) for one in policies)
    return Remedy(Definitions.of(one for one in filled if one), given, chosen, replaced)


def _asks(one: BrokerObject | Policy) -> bool:
    if isinstance(one, Policy):
        return TARGET_QUEUE in one.definition.values()
    return isinstance(one, Binding) and one.destination == TARGET_QUEUE


def _propose(objects: Iterable[BrokerObject], finding: Finding) -> str:
    """A queue for the dead letters of the exchange that is bound, else of the queue; for an
    exchange that nobody consumes from, one with its name."""
    sources = [one.source for one in objects if isinstance(one, Binding)]
    names = [name for kind, name, *_ in finding.objects if kind == "queue"]
    if not names:
        return next(iter(sources), TARGET_QUEUE)
    return name_dead_letter_queue(next(iter((*sources, *names))))


def _fill(obj: BrokerObject, queue: str, snapshot: Snapshot) -> BrokerObject | None:
    """None for a binding whose key nobody can know."""
    if not isinstance(obj, Binding):
        return obj
    destination = queue if obj.destination == TARGET_QUEUE else obj.destination
    if obj.routing_key != TARGET_KEY:
        return replace(obj, destination=destination)
    source = snapshot.declared.exchange(obj.source)
    keys = {"topic": "#", "fanout": "", "headers": ""}
    key = keys.get(source.type) if isinstance(source, Exchange) else None
    return None if key is None else replace(obj, destination=destination, routing_key=key)


def _name_queue(policy: Policy, queue: str) -> Policy:
    given = {k: queue if v == TARGET_QUEUE else v for k, v in policy.definition.items()}
    return replace(policy, definition=Arguments(given))


def describe_policies(remedy: Remedy) -> Iterator[str]:
    """A sentence for each policy."""
    for one in remedy.policies:
        given = [f"{key} {value or '(default exchange)'}" for key, value in one.definition.items()]
        given += [f"no {key}" for key in one.removed]
        if one.over:
            given.append(f"the other settings of policy {one.over}, in its place")
        yield f"policy {one.name} for queues that match {one.pattern}: {', '.join(given)}"
