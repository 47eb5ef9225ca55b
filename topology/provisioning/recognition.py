"""Recognition of topologies in a vhost that Delayboard does not manage: pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from topology.definitions import (
    BrokerObject,
    Definitions,
    Exchange,
    Identity,
    Queue,
    is_tap,
    show_value,
)
from topology.delays import DelayError, format_delay, milliseconds, parse_delay
from topology.patterns.chain import params as chains
from topology.patterns.chain.pattern import delay_chain, retry_chain
from topology.patterns.names import control_problem, visibility_problem
from topology.patterns.pattern import Use
from topology.patterns.table import KINDS, PATTERNS
from topology.provisioning.plan import Change, Plan, compare, title
from topology.snapshot import Snapshot
from topology.structure.chain import Chain, as_document
from topology.structure.find_chains import find_chains, make_chain
from topology.structure.taps import describe_observation, place_taps

_PLACES = {kind: place for place, kind in enumerate(PATTERNS)}
# A duration in a name, between signs that part words: "60s", "1h30m", "retry_5m".
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|w|d|h|m|s))+", re.IGNORECASE)
_PARTS = re.compile(r"[^0-9A-Za-z]+")
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Found:
    """A use of a pattern in a vhost, and which of the pattern's objects exist.

    `plan` is None when no parameters would create it again; its "create" are the missing objects,
    its "conflict" those that differ. `queues` are the names of the queues it claims and of those
    that use creates and removes; `waiting` counts the messages in its delay queues and in the
    queues that a forwarder of ours reads, None when the broker does not report it or messages wait
    outside of queues. `delays` names the queues that `waiting` counts, `shared` other uses with
    some of the same delay queues. `untrue_names` are sentences on delay queues whose name and TTL
    differ.
    """

    use: Use
    plan: Plan | None
    waiting: int | None
    queues: tuple[str, ...]
    delays: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    untrue_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """A queue that a use leads to without claiming it: it is its work queue."""

    queue: Queue
    use: Use


@dataclass(frozen=True)
class Recognition:
    """`foreign` is what no use claims or serves, in the order in which it could be declared.

    Of `overlapping` uses another of those found claims something that it may not share. `served`
    are the work queues that belong to none, by name. `waiting` counts the messages in all delays,
    each queue once; None where the broker leaves one of them out.
    """

    found: tuple[Found, ...]
    foreign: tuple[BrokerObject, ...]
    overlapping: tuple[Use, ...] = ()
    served: tuple[Served, ...] = ()
    waiting: int | None = None


@dataclass(frozen=True)
class Departure:
    """One argument or attribute that differs from the pattern's declaration.

    `in_force` is the effective value when a policy sets it, with the name of that `policy`; both
    are "" when the declared value is effective.
    """

    title: str
    name: str
    wanted: str
    declared: str
    in_force: str = ""
    policy: str = ""

    @property
    def is_made_up_for(self) -> bool:
        """Whether the policy gives what the pattern wants."""
        return bool(self.policy) and self.in_force == self.wanted


@dataclass
class _Claims:
    """What the chosen uses claim: the kind of who does, and of each queue who alone does.

    Uses of one kind may share things with each other while each has a queue of its own, as two
    retry loops do that are fed by one exchange. Kinds share nothing.
    """

    kinds: dict[Identity, str] = field(default_factory=dict)
    _alone: dict[Identity, str] = field(default_factory=dict)
    _own: Counter[tuple[str, str]] = field(default_factory=Counter)

    def taken(self, use: Use) -> Set[Identity]:
        return use.claims & self.kinds.keys()

    def may_share(self, use: Use, taken: Set[Identity]) -> bool:
        """Whether what is `taken` already may be this use's too."""
        if any(self.kinds[identity] != use.kind for identity in taken):
            return False
        lost = Counter(self._alone[identity] for identity in taken if identity in self._alone)
        has_own = any(identity[0] == "queue" for identity in use.claims - taken)
        return has_own and all(self._own[use.kind, name] > n for name, n in lost.items())

    def add(self, use: Use) -> None:
        for identity in use.claims:
            if identity[0] == "queue" and identity not in self.kinds:
                self._alone[identity] = use.name
                self._own[use.kind, use.name] += 1
            elif (other := self._alone.pop(identity, None)) is not None:
                self._own[use.kind, other] -= 1
            self.kinds[identity] = use.kind


def recognize(snapshot: Snapshot) -> Recognition:
    """Every use in the vhost; what two of one kind share is claimed by both.

    By what is in force, policies included, and then, in what is left, by what was declared: a
    policy may break a set that was built whole. Compared is always what was declared.
    """
    consumed = snapshot.consumed
    known = _structure(
        snapshot.definitions,
        snapshot.declared,
        frozenset(
            queue.name
            for queue in snapshot.definitions.queues
            if queue.dead_letter_exchange is not None and queue.name in consumed
        ),
    )
    found = tuple(replace(one, waiting=snapshot.sum_messages(one.delays)) for one in known.found)
    waiting = snapshot.sum_messages({name for one in found for name in one.delays})
    return replace(known, found=found, waiting=waiting)


def describe_chains(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Every chain of a vhost as commands print it, with the pattern that declares it.

    `differences` are sentences on what the pattern would declare otherwise, `obstacles` on what
    is impossible for the chain; `observed` says by which means its entries and exits can be
    seen: a tap, or only the firehose.
    """
    uses = {queue: one for one in recognize(snapshot).found for queue in one.queues}
    documents = []
    for chain in find_chains(snapshot.definitions, snapshot.consumed):
        one = uses.get(chain.queues[0])
        pattern = one.use.kind if one and one.use.kind in PATTERNS else None
        is_adoptable = one is not None and one.plan is not None
        phases = {tap.phase for tap in place_taps(chain)}
        obstacles = list(describe_observation(chain))
        if not is_adoptable:
            obstacles.append("It cannot be adopted: a name in it cannot be stored or read.")
        elif one and (obstacle := KINDS[one.use.kind].change_obstacle(one.use.params)):
            obstacles.append(obstacle)
        documents.append(
            {
                **as_document(chain),
                "pattern": pattern,
                "differences": list(one.use.missing) if one and pattern else [],
                "adoptable": is_adoptable,
                "obstacles": obstacles,
                "observed": {
                    "entries": "tap" if "entry" in phases else "firehose",
                    "exits": "tap" if "exit" in phases else "firehose",
                },
            }
        )
    return documents


def departures(found: Found, snapshot: Snapshot) -> list[Departure]:
    """What is different in it, and what a policy makes different, argument by argument."""
    if found.plan is None:
        return []
    return [
        departure
        for change in found.plan.changes
        if change.sign != "create"
        for departure in _departures(change, snapshot)
    ]


def _departures(change: Change, snapshot: Snapshot) -> Iterator[Departure]:
    obj = change.object
    name_of = title(snapshot.declared.get(obj.identity) or obj)
    queue = snapshot.definitions.queue(obj.name) if isinstance(obj, Queue) else None
    declared = snapshot.declared.queue(obj.name) if isinstance(obj, Queue) else None
    policy = ""
    if queue is not None and queue != declared:
        policy = snapshot.policies.get(queue.name) or "an operator policy"
    differing = {difference.name for difference in change.differences}
    for each in change.differences:
        holds = show_value(queue.arguments.get(each.name)) if queue and policy else ""
        is_policys = holds not in ("", each.found)
        seen = (holds, policy) if is_policys else ("", "")
        yield Departure(name_of, each.name, each.wanted, each.found, *seen)
    if queue is None or declared is None or not policy:
        return
    for name, value in obj.arguments.items():
        holds, stated = (
            show_value(queue.arguments.get(name)),
            show_value(declared.arguments.get(name)),
        )
        if name not in differing and holds != stated:
            yield Departure(name_of, name, show_value(value), stated, holds, policy)


# A vhost is looked at again and again, and seldom changes.
@lru_cache(maxsize=2)
def _structure(
    definitions: Definitions, declared: Definitions, consumed: frozenset[str]
) -> Recognition:
    """What does not change while nobody declares anything, and no consumer comes or goes.

    Chains that no pattern explains come last; `consumed` are the queues with consumers.
    """
    chosen: list[Use] = []
    overlapping: list[Use] = []
    claims = _Claims()
    named: set[tuple[str, str]] = set()
    structure = find_chains(definitions, consumed)
    whole = {
        name for one in structure if one.destinations and not one.missing for name in one.queues
    }
    for use in _list_candidates(definitions, declared):
        if _leads_elsewhere(use, definitions, whole):
            continue
        is_known, shared = (use.kind, use.name) in named, claims.taken(use)
        if not shared or (not is_known and claims.may_share(use, shared)):
            chosen.append(use)
            claims.add(use)
            named.add((use.kind, use.name))
        elif not is_known:
            overlapping.append(use)
    chosen += _find_chain_uses(structure, definitions, declared, claims.kinds.keys())
    claimed = {one for use in (*chosen, *overlapping) for one in use.claims}
    taken = claims.kinds.keys() | claimed
    chosen.sort(key=_place)
    served = _find_served(chosen, definitions, declared, taken)
    known = taken | {one.queue.identity for one in served}
    foreign = (
        obj
        for obj in declared.without_taps().without_probes()
        if obj.identity not in known
        # What is bound to an exchange that every vhost has is somebody's.
        and not (isinstance(obj, Exchange) and obj.is_predeclared)
    )
    found = [_make_found(use, definitions, declared) for use in chosen]
    return Recognition(_add_shared_delays(found), tuple(foreign), tuple(overlapping), served)


def _add_shared_delays(found: Sequence[Found]) -> tuple[Found, ...]:
    """Each with the names of those that have a delay in common with it."""
    by_delay: dict[str, list[str]] = defaultdict(list)
    for one in found:
        for name in one.delays:
            by_delay[name].append(one.use.name)
    shared = {name: names for name, names in by_delay.items() if len(names) > 1}
    return tuple(
        replace(one, shared=tuple(sorted(others - {one.use.name})))
        if (others := {other for name in one.delays for other in shared.get(name, ())})
        else one
        for one in found
    )


def _find_served(
    uses: Iterable[Use], definitions: Definitions, declared: Definitions, taken: Set[Identity]
) -> tuple[Served, ...]:
    """The targets that uses reach by name, if nobody claims them, each of the first that does."""
    served: dict[str, Served] = {}
    for use in uses:
        if use.params is None:
            continue
        pattern = KINDS[use.kind]
        names = (identity[1] for identity in use.claims if identity[0] == "queue")
        queues = (queue for queue in map(definitions.queue, names) if queue is not None)
        reached = {
            queue.dead_letter_routing_key or ""
            for queue in queues
            if queue.dead_letter_exchange == ""
        }
        reached |= {forwarder.onward for forwarder in pattern.forwarders(use.params)}
        if isinstance(use.params, chains.Params):
            reached.update(queue.name for queue in use.params.declared.queues)
        targets = set(pattern.targets(use.params))
        if isinstance(use.params, chains.Params):
            targets.update(chains.chain_of(use.params).failing)
        for name in reached & targets:
            queue = declared.queue(name)
            if queue is not None and queue.identity not in taken:
                served.setdefault(name, Served(queue, use))
    return tuple(one for _, one in sorted(served.items()))


def _leads_elsewhere(use: Use, definitions: Definitions, whole: Set[str]) -> bool:
    """Whether a delay queue of it, in a chain that works, has another exit than the pattern says:
    of the pattern it has the names alone."""
    if not use.missing or use.params is None:
        return False
    for wanted in KINDS[use.kind].definitions(use.params).queues:
        there = definitions.queue(wanted.name)
        if there is not None and there.name in whole and _exit_of(there) != _exit_of(wanted):
            return True
    return False


def _exit_of(queue: Queue) -> tuple[str | None, str | None]:
    return queue.dead_letter_exchange, queue.dead_letter_routing_key


def _find_chain_uses(
    found_chains: Iterable[Chain],
    definitions: Definitions,
    declared: Definitions,
    taken: Set[Identity],
) -> Iterator[Use]:
    """The chains, or what patterns leave of them, with the exchanges that serve nothing else."""
    for found in found_chains:
        left = [name for name in found.queues if ("queue", name) not in taken]
        if not left:
            continue
        is_whole = len(left) == len(found.queues)
        chain = found if is_whole else make_chain(found.name, left, definitions)
        inner = chain.definitions.bindings
        own = {
            exchange.name
            for exchange in chain.definitions.exchanges
            if not exchange.is_predeclared
            and all(
                one in inner or is_tap(one.destination)
                for one in definitions.leaving(exchange.name)
            )
        }
        claims: set[Identity] = {("queue", name) for name in left}
        claims.update(("exchange", name) for name in own)
        # Only the bindings of an exchange that every vhost has belong to somebody.
        bound = own | {one.name for one in chain.definitions.exchanges if one.is_predeclared}
        claims.update(
            one.identity for one in inner if one.source in bound or one.destination in left
        )
        kind = retry_chain.KIND if chain.retries else delay_chain.KIND
        objects = chain.definitions
        names = {queue.name for queue in objects.queues} | {one.name for one in objects.exchanges}
        is_odd = any(map(visibility_problem, names)) or any(
            control_problem(binding.routing_key) for binding in inner
        )
        params = None if is_odd else chains.claim(chain, declared)
        yield Use(kind, chain.name, params, frozenset(claims - taken), chain.missing)


def _list_candidates(definitions: Definitions, declared: Definitions) -> Iterator[Use]:
    """Whole ones first, so that no half of one kind takes from a whole one of another."""
    for seen in (definitions,) if definitions == declared else (definitions, declared):
        there = seen.without_taps().without_probes()
        uses = [use for pattern in PATTERNS.values() for use in pattern.recognize(there)]
        uses.sort(key=lambda use: (bool(use.missing), *_place(use)))
        yield from uses


def _place(use: Use) -> tuple[int, str, str]:
    return _PLACES.get(use.kind, len(_PLACES)), use.kind, use.name


def _make_found(use: Use, definitions: Definitions, declared: Definitions) -> Found:
    names = {identity[1] for identity in use.claims if identity[0] == "queue"}
    delays = {name for name in names if _is_delay(name, definitions)}
    plan = None
    if use.params is not None:
        pattern = KINDS[use.kind]
        members = {queue.name for queue in pattern.members(use.params, definitions)}
        waited = {forwarder.queue for forwarder in pattern.forwarders(use.params)} & names
        names, delays = names | members, delays | members | waited
        if isinstance(use.params, chains.Params):
            delays |= set(use.params.queues)
        plan = compare(pattern.definitions(use.params), declared)
    untrue = untrue_names(delays, definitions)
    queues = tuple(sorted(names))
    return Found(use, plan, None, queues, tuple(sorted(delays)), untrue_names=untrue)


def _is_delay(name: str, definitions: Definitions) -> bool:
    queue = definitions.queue(name)
    return queue is not None and queue.message_ttl_ms is not None


def read_stated_ms(name: str) -> int | None:
    """The one duration that a name states, in milliseconds; None for none and for several."""
    parts = [part for part in _PARTS.split(name) if _DURATION.fullmatch(part)]
    if len(parts) != 1:
        return None
    try:
        return milliseconds(parse_delay(parts[0]))
    except DelayError:
        return None


def untrue_names(names: Iterable[str], found: Definitions) -> tuple[str, ...]:
    """A sentence for each queue whose name states another time than its TTL in force."""
    sentences = []
    for name in sorted(names):
        queue, stated = found.queue(name), read_stated_ms(name)
        ttl = queue.message_ttl_ms if queue else None
        if stated is not None and ttl is not None and ttl != stated:
            held = format_delay(_MILLISECOND * ttl)
            named = format_delay(_MILLISECOND * stated)
            sentences.append(
                f"The name of the queue “{name}” states {named}, but the TTL is {held}."
            )
    return tuple(sentences)
