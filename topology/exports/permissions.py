"""The least permissions on a topology, as `rabbitmqctl set_permissions` takes them.

Declaring needs configure on the object; of a queue with a dead-letter exchange (of an exchange with
an alternate exchange) also read on it and write on that exchange. Binding needs read on the source
and write on the destination, publishing write on the exchange, consuming read on the queue.
Source: https://www.rabbitmq.com/docs/access-control#authorisation

All patterns have one rule. Messages enter by the exchanges of the routes of all delays, zero too,
and by whatever else leads to the queues where they arrive (`_Reach`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby, product, takewhile
from shlex import quote
from typing import Any

from topology.definitions import (
    PROBE_PREFIX,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
    has_dead_letter_name,
)
from topology.delays import milliseconds
from topology.message import Route
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.patterns.pattern import MADE_UP, ParamsError, Pattern
from topology.routing.walk import walk

# Name of the default exchange in permissions.
DEFAULT_EXCHANGE = "amq.default"
# Words that a person replaces by a name.
DESTINATION, PARKING = "DESTINATION", "PARKING"
NOTHING = "^$"
# Longest expression of a permission; before 4.3 there is no limit (tried on 4.0.5 and 4.3.6:
# pattern_too_long).
LONGEST_BYTES = 1024
# Placeholders in names; no name of a topology has them.
ANY_NUMBER, ANY_TEXT = "\0", "\1"
SHORTEST = timedelta(milliseconds=1)
# Names of what Delayboard creates: taps, interceptions and others, probes, and for a time what
# stands beside a queue (provisioning/replacement.py and edit.py).
OWN = ("delayboard." + ANY_TEXT, PROBE_PREFIX + ANY_TEXT)
BESIDE = r"\.(replacement|rerouting-).*"
FIREHOSE = "amq.rabbitmq.trace"


@dataclass
class Permissions:
    """Names of exchanges and queues that a user may configure, write and read; `beside` are the
    queues beside which the user may create others for a time."""

    configure: set[str] = field(default_factory=set)
    write: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)

    def publish(self, exchange: str) -> None:
        self.write.add(exchange or DEFAULT_EXCHANGE)

    def consume(self, queues: Iterable[str]) -> None:
        self.read |= set(queues)

    def declare(self, objects: Iterable[BrokerObject]) -> None:
        for obj in objects:
            match obj:
                case Exchange(is_predeclared=True):
                    pass
                case Queue():
                    self._create(obj.name, obj.dead_letter_exchange)
                case Exchange():
                    self._create(obj.name, obj.arguments.text("alternate-exchange") or None)
                case Binding():
                    self.consume([obj.source])
                    self.publish(obj.destination)

    def _create(self, name: str, onward: str | None) -> None:
        self.configure.add(name)
        if onward is not None:
            self.consume([name])
            self.publish(onward)

    def add(self, other: Permissions) -> None:
        for name, names in vars(self).items():
            names.update(getattr(other, name))

    def patterns(self) -> tuple[str, str, str]:
        beside = self.beside
        read, write = _expression(self.read, beside), _expression(self.write, beside)
        return _expression(self.configure, beside), write, read


def of_publisher(
    pattern: Pattern, params: Any, found: Definitions, *, declares: bool = False
) -> Permissions:
    """Permissions to publish new messages and messages with any delay that is available.

    `found` is what the vhost has; where no destination is bound yet, the name is DESTINATION.
    `declares`: also to declare and bind the topology, and what leads to its destinations.
    """
    reach = _Reach(pattern, params, found)
    permissions = reach.permit_routes()
    for exchange in {*reach.entries, *_list_published(params)}:
        permissions.publish(exchange)
    if declares:
        permissions.declare(reach.objects)
    return permissions


def of_consumer(
    pattern: Pattern, params: Any, found: Definitions, *, declares: bool = False
) -> Permissions:
    """Permissions to consume, ack and reject, and to publish what failed where the consumer does
    so: again with a delay, or for good to a queue for people. In a chain of others nothing shows
    who publishes, so the consumer may.
    """
    reach = _Reach(pattern, params, found)
    permissions = Permissions()
    permissions.consume(reach.ends)
    if pattern.ATTEMPTS_COUNTED_BY == "consumer":
        permissions.add(reach.permit_routes())
    for exchange in _list_published(params):
        permissions.publish(exchange)
    # Otherwise the topology itself puts aside what failed too often.
    gives_up = (
        pattern.ATTEMPTS_COUNTED_BY in ("consumer", "x-death") and pattern.rounds(params) is None
    )
    if gives_up:
        permissions.publish("")
    if declares:
        permissions.declare(reach.objects)
        if gives_up:
            permissions.configure |= set(reach.parking or [PARKING])
    return permissions


def of_delayboard(
    pattern: Pattern, params: Any, found: Definitions, objects: Definitions
) -> Permissions:
    """Permissions to apply, record, publish, park, replay, change, migrate, replace and delete;
    `objects` are the topology's and its tap's.
    """
    reach = _Reach(pattern, params, found)
    permissions = reach.permit_routes(any_delay=True)
    probe = PROBE_PREFIX + ANY_TEXT
    permissions.declare(pattern.probe_bindings(params, probe))
    for delay in reach.delays:
        with suppress(ParamsError):
            route = pattern.probe_route(params, delay, probe)
            permissions.add(reach.permit(route, delay, any_delay=True))
    permissions.declare(objects)
    around = objects | reach.objects
    names = [one.name for one in around.queues] + [one.name for one in around.exchanges]
    # A replacement of a queue moves the bindings of others too.
    names += {source for queue in objects.queues for source in found.sources(queue.name)} - {""}
    members = [queue.name for queue in pattern.members(params, found)]
    permissions.read |= {*names, *members, *reach.failed, FIREHOSE, *OWN}
    permissions.write |= {*names, DEFAULT_EXCHANGE, *OWN}
    permissions.configure |= set(OWN)
    permissions.beside = {queue.name for queue in objects.queues}
    return permissions


class _Reach:
    """What of a vhost the messages of a topology enter, and where they arrive.

    `ends` are the queues where they arrive, by name. `objects` is the topology, and those
    exchanges, queues and bindings that lead to the ends at once.
    """

    def __init__(self, pattern: Pattern, params: Any, found: Definitions) -> None:
        self._pattern, self._params = pattern, params
        self._own = pattern.definitions(params)
        left, _ = found.without_taps().without_probes().without_interceptions()
        self._whole = left | self._own
        trials = pattern.trials(params, found)
        tried = dict.fromkeys(target for _, target, _ in trials)
        # Where messages state their delays, as in a chain of others, none is tried.
        targets = [*tried] or [*pattern.targets(params)] or [MADE_UP]
        self.delays = _list_delays(pattern, params)
        self._routes = list[tuple[Route, timedelta]]()
        for delay, target in product(self.delays, targets):
            with suppress(ParamsError):
                route = pattern.route(params, delay, target)
                # With the bindings that the vhost has for the same keys, whatever they lead to.
                bound = list[Binding]()
                for one in route.declares.bindings:
                    leaving = self._whole.leaving(one.source)
                    bound += [b for b in leaving if b.routing_key == one.routing_key] or [one]
                declares = Definitions.of([*route.declares.queues, *bound])
                self._routes.append((replace(route, declares=declares), delay))
        # The ends that the pattern names, else those of the routes without a delay.
        named = {queue for *_, queue in trials} - {""}
        if not named:
            walks = (
                walk(self._whole | route.declares, route.exchange, route.routing_key)
                for route, delay in self._routes
                if not delay
            )
            named = {one.queue for walked in walks for one in walked.delivered}
        self.ends = sorted(named) or [MADE_UP]
        # What a route binds before the first message, and where the binding leads.
        bindings = {one for route, _ in self._routes for one in route.declares.bindings}
        ends = [
            (Queue if one.destination_is_queue else Exchange)(one.destination) for one in bindings
        ]
        self.objects = self._own | self._find_upstream() | Definitions.of([*bindings, *ends])

    def _find_upstream(self) -> Definitions:
        """The ends, and what leads to them at once: others' dead letters came by a wait."""
        ends = Definitions.of(self._whole.queue(name) or Queue(name) for name in self.ends)
        bindings = set[Binding]()
        reached = {(True, name) for name in self.ends}
        while reached:
            leading = {
                one
                for one in self._whole.bindings - bindings
                if (one.destination_is_queue, one.destination) in reached
            }
            bindings |= leading
            reached = {
                (False, one.source) for one in leading if not self._whole.dying_into(one.source)
            }
        exchanges = (self._whole.exchange(one.source) for one in bindings)
        return ends | Definitions.of([*bindings, *(one for one in exchanges if one)])

    @property
    def entries(self) -> Iterator[str]:
        """The exchanges that lead to the ends, without those that only pass on what waited in the
        topology; those of its routes are beside them."""
        fed = {one.destination for one in self._own.bindings if not one.destination_is_queue}
        fed |= {one.dead_letter_exchange or "" for one in self._own.queues}
        fed |= {one.arguments.text("alternate-exchange") or "" for one in self._own.exchanges}
        for exchange in self.objects.exchanges:
            if exchange.name not in fed or self._own.exchange(exchange.name) is None:
                yield exchange.name

    @property
    def parking(self) -> list[str]:
        """The queues that are named as those for messages of the ends that failed for good."""
        names = (queue.name for queue in self._whole.queues)
        return [name for name in names if any(has_dead_letter_name(name, end) for end in self.ends)]

    @property
    def failed(self) -> list[str]:
        """These queues, and the queues into which the ends dead-letter."""
        found = self.parking
        for queue in filter(None, map(self._whole.queue, self.ends)):
            if exchange := queue.dead_letter_exchange:
                leaving = self._whole.leaving(exchange)
                found += [one.destination for one in leaving if one.destination_is_queue]
            elif exchange is not None:
                found.append(queue.dead_letter_routing_key or queue.name)
        return found

    def permit_routes(self, *, any_delay: bool = False) -> Permissions:
        """What a publish with each delay to each of the targets needs.

        `any_delay`: also with those that are not on offer, as when a message is rescheduled.
        """
        any_delay = any_delay or not self._pattern.delays(self._params)
        permissions = Permissions()
        for route, delay in self._routes:
            permissions.add(self.permit(route, delay, any_delay=any_delay))
        return permissions

    def permit(self, route: Route, delay: timedelta, *, any_delay: bool) -> Permissions:
        """Permissions to declare and publish as the route says, and to its destinations without a
        delay.
        """
        permissions = Permissions()
        shown = delay if any_delay else None
        permissions.declare(_stand_for_all(one, shown) for one in route.declares)
        permissions.publish(route.exchange)
        for binding in route.declares.bindings:
            permissions.publish("" if binding.destination_is_queue else binding.destination)
        return permissions


def _list_published(params: Any) -> set[str]:
    """The exchanges by which clients publish into a chain of others, also between its queues."""
    if not isinstance(params, ChainParams):
        return set()
    chain = chain_of(params)
    found = {entry.exchange for entry in chain.entries if not entry.failing}
    passing = [one for one in chain.definitions.bindings if not one.destination_is_queue]
    while before := {one.source for one in passing if one.destination in found} - found:
        found |= before
    return found


def _stand_for_all(obj: BrokerObject, delay: timedelta | None) -> BrokerObject:
    """A queue whose name has the delay, or a key that is made up, in place of those of all."""
    if not isinstance(obj, Queue):
        return obj
    name = obj.name
    if delay is not None:
        name = re.sub(rf"(?<!\d){milliseconds(delay)}(?!\d)", ANY_NUMBER, name, count=1)
    return replace(obj, name=re.sub(rf"{MADE_UP}(?!-)", ANY_TEXT, name))


def _list_delays(pattern: Pattern, params: Any) -> list[timedelta]:
    """Zero, and those on offer; where any can be had, the longest and each half of the one before.

    A route may have another exchange for each power of two (delay levels), and none has more.
    """
    if offered := pattern.delays(params):
        return [timedelta(0), *offered]
    found, delay = [timedelta(0)], pattern.longest(params)
    while delay >= SHORTEST:
        found.append(delay)
        delay /= 2
    return found


def as_commands(roles: Iterable[tuple[str, Permissions]], vhost: str) -> str:
    """A shell's lines; the users are named after their roles and have to exist."""
    lines = [
        "# Replaces what these users may do in this virtual host. For several topologies, join the",
        f"# expressions. Replace {DESTINATION} and {PARKING} by the names of queues and exchanges.",
        f"VHOST={quote(vhost)}",
    ]
    for user, permissions in roles:
        patterns = permissions.patterns()
        longest = max(len(one.encode()) for one in patterns)
        if longest > LONGEST_BYTES:
            lines.append(
                f"# RabbitMQ 4.3 and later refuse this line: an expression has {longest} bytes, "
                f"and at most {LONGEST_BYTES} are allowed. Shorten it, for example by .*"
            )
        words = " ".join(map(quote, patterns))
        lines.append(f'rabbitmqctl set_permissions -p "$VHOST" {user} {words}')
    lines.append("rabbitmqctl set_user_tags delayboard monitoring")
    return "\n".join(lines) + "\n"


def _expression(names: Collection[str], beside: Collection[str]) -> str:
    """Each name in full if RabbitMQ takes so many bytes, else what they begin with only once."""
    if not names:
        return NOTHING
    # A probe's name begins as that of the target that is made up.
    listed = sorted({re.sub(rf"{MADE_UP}(?!-)", DESTINATION, name) for name in names})
    queues = sorted(beside)
    expression = ""
    for combine in (lambda names: "|".join(map(_escape, names)), _factor):
        temporary = f"|({combine(queues)}){BESIDE}" if queues else ""
        expression = f"^({combine(listed)}{temporary})$"
        if len(expression.encode()) <= LONGEST_BYTES:
            break
    return expression


def _factor(names: Sequence[str]) -> str:
    """An expression for these names, in order and each once, by their common beginnings."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(names[0], names[-1], strict=False))
    start = "".join(character for character, _ in alike)
    if len(names) == 1:
        return _escape(start)
    rest = [name[len(start) :] for name in names]
    parts = (_factor(list(group)) for _, group in groupby(rest, lambda one: one[:1]))
    return f"{_escape(start)}({'|'.join(parts)})"


def _escape(name: str) -> str:
    """Escape only what PCRE reads as more than itself, so that a person can read the rest."""
    stated = re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", name)
    return stated.replace(ANY_NUMBER, "[0-9]+").replace(ANY_TEXT, ".*")
