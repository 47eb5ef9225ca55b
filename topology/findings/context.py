"""A snapshot with what several rules ask of it, each worked out once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from topology.definitions import (
    PREDECLARED_PREFIX,
    Arguments,
    ArgumentValue,
    Exchange,
    Identity,
    Queue,
    has_dead_letter_name,
    show_value,
)
from topology.findings.hit import (
    TARGET_QUEUE,
    Admin,
    Evidence,
    Replacement,
    delete_queue,
    name_dead_letter_queue,
    set_policy,
)
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.params import split_name
from topology.patterns.hold_queues.params import is_held_for
from topology.patterns.pattern import Use
from topology.routing.context import Circumstances, find_reasons, merge_consumers
from topology.routing.cycle import Reason
from topology.routing.matching.index import NEWEST, Index, MessageKeys
from topology.routing.matching.match import Unknown
from topology.routing.message_copy import Copy
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.queue_wait import Dies
from topology.routing.walk import follow, leave
from topology.snapshot import QueueNumbers, Report, Snapshot
from topology.structure.ends import Ends, find_ends

# Most keys of a queue that are followed; of more bindings some keys stand for all.
MOST_KEYS = 5
_UNKNOWN: Mapping[Unknown, str] = {"keys": "routing keys in CC or BCC", "headers": "headers"}


def state_unless(unknown: Collection[Unknown]) -> str:
    """The condition of a hit: what such a message may have that changes where it goes."""
    named = [_UNKNOWN[part] for part in ("keys", "headers") if part in unknown]
    return f"the message has {' or '.join(named)} for another queue" if named else ""


@dataclass(frozen=True)
class Death:
    """A message with this key that dies in a queue for a reason, and where it goes from there."""

    queue: Queue
    reason: Reason
    routing_key: str
    walk: Walk

    def back(self) -> Iterator[RouteOutcome]:
        """The ends of copies that come to the same queue again."""
        for outcome in self.walk.outcomes:
            if any(hop.queue == self.queue.name for hop in outcome.hops[1:]):
                yield outcome


class Context:
    """What rules see: everything but Delayboard's own taps."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.version = snapshot.version_tuple or NEWEST
        self.admin = Admin(snapshot.version_tuple)
        self.index = Index(snapshot.definitions.without_taps())
        self._keys = MessageKeys(self.index)
        self._around = Circumstances(
            self.index, self.version, merge_consumers(snapshot.consumed, None)
        )

    def with_numbers(self, snapshot: Snapshot) -> Context:
        """The same for a snapshot that differs in its numbers only; what was computed is reused."""
        other = copy(self)
        other.snapshot = snapshot
        return other

    def numbers(self, queue: Queue) -> QueueNumbers:
        return self.snapshot.numbers.get(queue.name, QueueNumbers())

    def earlier_numbers(self, queue: Queue) -> QueueNumbers | None:
        """The numbers of a minute ago or more; None where they are not known, or the queue is
        younger.
        """
        return self.snapshot.earlier.get(queue.name) if self.snapshot.has_trend else None

    def reports(self, rule: str) -> Iterator[tuple[Queue, Report]]:
        """The reports for a rule, of queues that hold messages, taps included."""
        for report in self.snapshot.reports:
            one = self.snapshot.declared.queue(report.queue)
            if report.rule == rule and one is not None and self.numbers(one).messages != 0:
                yield one, report

    @cached_property
    def queues(self) -> Sequence[Queue]:
        """The queues, sorted by name."""
        return sorted(self.index.queues.values(), key=lambda queue: queue.name)

    @cached_property
    def dead_lettering(self) -> Sequence[Queue]:
        """The queues with a dead-letter exchange, by name; a stream dead-letters nothing."""
        return [q for q in self.queues if q.dead_letter_exchange is not None and q.type != "stream"]

    def keys(self, queue: Queue) -> Sequence[str] | None:
        """The keys with which its dead letters are routed; None where they may have any.

        Its own name is the key of what was published to it through the default exchange. Where
        it has bindings, those count instead.
        """
        if queue.dead_letter_routing_key is not None:
            return (queue.dead_letter_routing_key,)
        found = self._keys.of(queue.name)
        if found is None:
            return None
        return sorted(found - {queue.name} or found)

    def reasons(self, queue: Queue) -> Sequence[Reason]:
        is_delay = queue.name in self.ends.delays
        is_consumed = self.is_consumed(queue)
        return find_reasons(queue, self.version, is_delay=is_delay, is_consumed=is_consumed)

    @cached_property
    def ends(self) -> Ends:
        """Where failed messages end."""
        return find_ends(self.snapshot)

    @cached_property
    def deaths(self) -> Sequence[Death]:
        """Each queue with a dead-letter exchange, reason to die and known key."""
        return [
            Death(queue, reason, key, self.die(queue, reason, key))
            for queue in self.dead_lettering
            for key in (self.keys(queue) or ())[:MOST_KEYS]
            for reason in self.reasons(queue)
        ]

    def reject(self, queue: Queue, key: str) -> Death:
        return Death(queue, "rejected", key, self.die(queue, "rejected", key))

    def die(self, queue: Queue, reason: Reason, key: str) -> Walk:
        """Where a message goes that dies here with this key; its first hop is this queue."""
        # What its messages may have beside a known key. Whatever CC named at the default exchange
        # got its own copy there.
        sources = self.index.definitions.sources(queue.name)
        is_default = not queue.dead_letter_exchange and not sources
        unknown = frozenset[Unknown]({"headers"} if is_default else {"keys", "headers"})
        copy = Copy("", (key,), {}, unknown=unknown)
        waits_ms = (queue.message_ttl_ms or 0) if reason == "expired" else 0
        dies = Dies(reason, waits_ms, f"a message dies in “{queue.name}”")
        left = leave(copy, queue, dies, self.version)
        return follow([left], self._around) if isinstance(left, Copy) else Walk((left,))

    @cached_property
    def fed_by_deaths(self) -> Mapping[str, Sequence[Queue]]:
        """The queues whose messages may die into one, by its name."""
        found: dict[str, list[Queue]] = {}
        for target, into in self.ends.feeds.items():
            names = {name for feed in into for name in feed.queues} - {target}
            if names:
                found[target] = [self.index.queues[name] for name in sorted(names)]
        return found

    @cached_property
    def levels(self) -> Sequence[Use]:
        """Sets of delay levels, whole or not."""
        return delay_levels.recognize(self.index.definitions)

    @cached_property
    def level_queues(self) -> frozenset[str]:
        claimed = (identity for use in self.levels for identity in use.claims)
        return frozenset(identity[1] for identity in claimed if identity[0] == "queue")

    @cached_property
    def delays(self) -> frozenset[str]:
        """Queues that surely are delays: levels, and what rejected messages wait in on their way
        back."""
        waits = set[str]()
        for death in self.deaths:
            back = death.back() if death.reason == "rejected" else ()
            waits |= {hop.queue for one in back for hop in one.hops[1:]} - {death.queue.name}
        queues = (self.index.queues.get(name) for name in waits | self.level_queues)
        return frozenset(one.name for one in queues if one and one.message_ttl_ms is not None)

    def may_delay(self, queue: Queue) -> str | None:
        """The condition on which it is a delay; "" for what surely is, None for any other.

        A work queue with a TTL is none: its messages go to a queue for failed ones, or consumers
        read it.
        """
        # By the names of delay queues and hold queues, which have the TTL and the destination.
        named, exchange = split_name(queue.name), queue.dead_letter_exchange
        ends = (exchange, queue.dead_letter_routing_key)
        is_ours = named is not None and ends == ("", named[0])
        is_named = is_ours or (exchange is not None and is_held_for(exchange, queue))
        if queue.name in self.delays or (queue.message_ttl_ms is not None and is_named):
            return ""
        if queue.message_ttl_ms is None or self.is_consumed(queue):
            return None
        reached = [
            end.queue
            for key in (self.keys(queue) or ())[:MOST_KEYS]
            for end in self.die(queue, "expired", key).delivered
        ]
        if not reached or any(one == queue.name or has_dead_letter_name(one) for one in reached):
            return None
        is_known = self.numbers(queue).consumers is not None
        return "" if is_known else f"consumers read “{queue.name}”"

    def is_consumed(self, queue: Queue) -> bool:
        return queue.name in self.ends.consumed

    def set_by(self, queue: Queue, argument: str) -> str:
        """The source of the value in force: "argument", or the name of the policy."""
        if argument not in queue.arguments:
            return ""
        given = self.snapshot.policy_arguments.get(queue.name, Arguments()).get(argument)
        declared = self.snapshot.declared.queue(queue.name)
        stated = declared.arguments.get(argument) if declared else None
        if given is None or stated == queue.arguments[argument]:
            return "argument"
        kinds = {
            "policy": self.snapshot.policies.get(queue.name),
            "operator policy": self.snapshot.operator_policies.get(queue.name),
        }
        return " or ".join(f"{kind} {name}" for kind, name in kinds.items() if name) or "policy"

    def give_policy(self, queue: Queue, **stated: ArgumentValue | None) -> tuple[str, ...]:
        """What sets it; `dead_letter_exchange` stands for "dead-letter-exchange".

        Only one policy applies to a queue. One that exists may be meant for other queues too, so
        one for this queue alone takes its place, with its settings. None where an operator policy
        may set the same.
        """
        given = {key.replace("_", "-"): value for key, value in stated.items()}
        by_policies = self.snapshot.policy_arguments.get(queue.name, Arguments())
        is_limited = queue.name in self.snapshot.operator_policies
        if is_limited and any(f"x-{key}" in by_policies for key in given):
            return ()
        name = f"delayboard-{queue.name}-dead-letters"
        return (set_policy(name, queue.name, given, self.snapshot.policies.get(queue.name, "")),)

    def give_exchange(self, queue: Queue, key: str = TARGET_QUEUE) -> tuple[str, ...]:
        """The same, for dead letters to a queue that a person has to name."""
        return self.give_policy(queue, dead_letter_exchange="", dead_letter_routing_key=key)

    def give_dead_letter_queue(self, queue: Queue) -> tuple[str, ...]:
        """The same to a queue of its own, which is declared first."""
        name = name_dead_letter_queue(queue.name)
        policy = self.give_exchange(queue, name)
        return (*self.declare_missing(name), *policy) if policy else ()

    def declare_bound(self, exchange: str, kind: str, *, key: str) -> tuple[str, ...]:
        """The commands that declare a missing exchange and bind a queue: named like it, if no
        queue has this name."""
        is_taken = self.snapshot.definitions.queue(exchange) is not None
        queue = name_dead_letter_queue(exchange) if is_taken else exchange
        declared = (self.admin.declare_exchange(exchange, kind), *self.declare_missing(queue))
        return (*declared, self.admin.bind(exchange, queue, key=key))

    def declare_missing(self, name: str) -> tuple[str, ...]:
        """The command that declares a queue; none for a blank, and for one that exists."""
        is_there = self.snapshot.definitions.queue(name) is not None
        return () if is_there or name == TARGET_QUEUE else (self.admin.declare_queue(Queue(name)),)

    def make_lasting(self, target: Exchange | Queue) -> tuple[str, ...]:
        """What declares it as durable, without auto-delete; no command replaces an exchange."""
        if isinstance(target, Queue):
            return self.redeclare(target, {}, lasting=True)
        declared = self.snapshot.declared.exchange(target.name)
        if declared is None or declared.is_predeclared:
            return ()
        wanted = replace(declared, durable=True, auto_delete=False)
        return (Replacement("", f"exchange {target.name}", wanted=wanted),)

    def redeclare(
        self, queue: Queue, changes: Mapping[str, ArgumentValue | None], *, lasting: bool = False
    ) -> tuple[str, ...]:
        """What declares a queue again while it is empty and unused, or gives it another policy
        where a policy sets what is to change. An argument is removed by None.

        Without a command for a quorum queue, which RabbitMQ deletes with its messages, and for a
        name that rabbitmqctl takes for an option, or that nobody but RabbitMQ declares.
        """
        declared = self.snapshot.declared.queue(queue.name)
        set_by = {self.set_by(queue, name) for name in changes} - {""}
        if declared is None or queue.type == "stream":
            return ()
        if set_by == {f"policy {self.snapshot.policies.get(queue.name)}"}:
            return self.give_policy(
                queue, **{name.removeprefix("x-"): value for name, value in changes.items()}
            )
        if set_by - {"argument"}:
            return ()
        given = {**declared.arguments, **changes}
        arguments = Arguments({k: value for k, value in given.items() if value is not None})
        wanted = replace(declared, arguments=arguments)
        if lasting:
            wanted = replace(wanted, durable=True, auto_delete=False)
        target = f"queue {queue.name}"
        if queue.type != "classic" or queue.name.startswith(("-", PREDECLARED_PREFIX)):
            return (Replacement("", target, wanted=wanted),)
        there = self.index.definitions
        sources = [source for source in there.sources(queue.name) if source]
        bindings = [one for source in sources for one in there.leads(source, queue.name)]
        # In one line, so that nobody copies a part of it. It begins with a declare that changes
        # nothing: a rabbitmqadmin that does not work ends it before the queue is deleted.
        declare, again = self.admin.declare_queue(declared), self.admin.declare_queue(wanted)
        steps = (declare, delete_queue(queue.name), again, *map(self.admin.restore, bindings))
        return (Replacement(" && ".join(steps), target, wanted=wanted),)

    def evidence(self, queue: Queue, argument: str, sentence: str) -> Evidence:
        """The argument's value in force, and who sets it."""
        value = show_value(queue.arguments.get(argument)) or "(default exchange)"
        return Evidence(queue.identity, argument, value, self.set_by(queue, argument), sentence)

    def evidence_of(self, obj: Identity, argument: str, value: str, sentence: str) -> Evidence:
        """The evidence of an object that is no queue; operator policies give exchanges nothing."""
        declared = self.snapshot.declared.get(obj)
        set_by = ""
        if isinstance(declared, Exchange):
            set_by = "argument" if argument in ("type", *declared.arguments) else "policy"
        return Evidence(obj, argument, value, set_by, sentence)
