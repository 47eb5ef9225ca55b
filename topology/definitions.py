"""What should exist in a broker: frozen exchanges, queues and bindings of one vhost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TypeAlias, TypeVar

ArgumentValue: TypeAlias = bool | int | float | str
Identity: TypeAlias = tuple[str, ...]
Key = TypeVar("Key")
Value = TypeVar("Value")

# Prefix of taps: queues that Delayboard binds beside the real ones, to record what passes.
TAP_PREFIX = "delayboard.tap."
# Prefix of probe queues and of the keys of probes. It has no dot: a destination is bound to delay
# levels by the end of the key, so no binding of others matches.
PROBE_PREFIX = "delayboard-probe-"
INTERCEPTION_PREFIX = "delayboard.intercept."
# Prefix of the exchanges that every virtual host has; RabbitMQ refuses to declare others with it.
PREDECLARED_PREFIX = "amq."
# Longest TTL, ten years: no broker declares a queue with more (rabbit_misc:check_expiry).
MAXIMUM_TTL_MS = 315_360_000_000
# Type of the archived plugin's exchanges, and the header with the delay.
DELAYED_TYPE, DELAY_HEADER = "x-delayed-message", "x-delay"
# Longest delay of the plugin, nearly fifty days; more is no delay (?ERL_MAX_T of
# rabbit_exchange_type_delayed_message.erl).
LONGEST_DELAY_MS = 4_294_967_295
# Names of queues for failed messages, which structure alone does not show: of NServiceBus, EasyNetQ
# and Wolverine, and ends of names by MassTransit, Spring Cloud Stream, dramatiq and people.
_DEAD_LETTER_NAME = re.compile(
    r"error|EasyNetQ_Default_Error_Queue.*|wolverine-dead-letter-queue|.*_skipped"
    r"|(?P<of>.*)[._-](?:dlq|xq|dead(?:-?letters?)?|errors?|parking(?:-?lot)?|parked|given-?up)",
    re.IGNORECASE,
)


class Arguments(Mapping[str, ArgumentValue]):
    """The arguments of an exchange, a queue or a binding: an immutable mapping.

    Two are equal when every value is equal and of the same type class, as the broker
    compares them: the width of an integer does not matter, but `True` is not `1`
    (rabbit_misc:assert_args_equivalence, 3.10.8 and 4.3.5).
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, ArgumentValue] | None = None) -> None:
        self._items = dict(sorted((items or {}).items()))

    def __getitem__(self, name: str) -> ArgumentValue:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def _typed(self) -> tuple[tuple[str, str, ArgumentValue], ...]:
        return tuple((name, type(value).__name__, value) for name, value in self._items.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arguments):
            return NotImplemented
        mine, theirs = self._items, other._items
        return mine == theirs and all(type(one) is type(theirs[name]) for name, one in mine.items())

    def __hash__(self) -> int:
        return hash(self._typed())

    def __repr__(self) -> str:
        return f"Arguments({self._items!r})"

    def text(self, name: str) -> str | None:
        """The value of a string argument, None when it is absent or of another type."""
        value = self._items.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """The value of an integer argument, None when it is absent or of another type."""
        value = self._items.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def show_value(value: ArgumentValue | None) -> str:
    """An argument's value as people read it."""
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
    return str(value)


def is_tap(queue: str) -> bool:
    """Whether a queue of this name is one of Delayboard's own taps."""
    return queue.startswith(TAP_PREFIX)


def is_probe(name: str) -> bool:
    """Whether a queue or a routing key of this name is that of Delayboard's probes."""
    return name.startswith(PROBE_PREFIX)


def is_interception(name: str) -> bool:
    """Whether a queue or exchange of this name is one of Delayboard's interceptions."""
    return name.startswith(INTERCEPTION_PREFIX)


def is_own_queue(name: str) -> bool:
    """Whether a queue of this name is a tap or a probe queue of Delayboard."""
    return is_tap(name) or is_probe(name)


def has_dead_letter_name(name: str, of: str = "") -> bool:
    """Whether a queue of this name is probably for failed messages; with `of`, of that queue."""
    found = _DEAD_LETTER_NAME.fullmatch(name)
    return found is not None and (not of or found["of"] == of)


def find_own_queue_problem(name: str) -> str:
    """Why no message may be sent to this queue: it is Delayboard's own; "" for other queues."""
    if is_tap(name):
        return "This queue is a tap of Delayboard. Enter another queue."
    if is_probe(name):
        return "This queue is a probe queue of Delayboard. Enter another queue."
    return ""


@dataclass(frozen=True)
class Exchange:
    """An exchange. The default exchange is named "" and is never declared."""

    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=Arguments)

    @property
    def identity(self) -> Identity:
        return ("exchange", self.name)

    @property
    def is_predeclared(self) -> bool:
        """Whether every vhost has it: nobody declares it, people only bind to it."""
        return self.name.startswith(PREDECLARED_PREFIX)


@dataclass(frozen=True)
class Queue:
    """A queue. Its type is in `arguments` as x-queue-type; no value means classic."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=Arguments)

    @property
    def identity(self) -> Identity:
        return ("queue", self.name)

    @property
    def type(self) -> str:
        return self.arguments.text("x-queue-type") or "classic"

    def with_type(self) -> Queue:
        """The same with its type stated, as a snapshot has every queue.

        Brokers take an absent type and "classic" for equal when it is declared again (tried,
        3.10.8 to 4.3.6).
        """
        return replace(self, arguments=Arguments({**self.arguments, "x-queue-type": self.type}))

    @property
    def message_ttl_ms(self) -> int | None:
        """None also for a number that no broker takes."""
        ttl = self.arguments.number("x-message-ttl")
        return ttl if ttl is not None and 0 <= ttl <= MAXIMUM_TTL_MS else None

    @property
    def message_ttl(self) -> timedelta | None:
        """The same as a duration."""
        ttl_ms = self.message_ttl_ms
        return None if ttl_ms is None else timedelta(milliseconds=ttl_ms)

    @property
    def deletes_after(self) -> timedelta | None:
        """The time after which RabbitMQ deletes a message of the queue: a TTL without a dead-letter
        exchange is no delay. None where no message is deleted by its age.
        """
        return self.message_ttl if self.dead_letter_exchange is None else None

    @property
    def dead_letter_exchange(self) -> str | None:
        return self.arguments.text("x-dead-letter-exchange")

    @property
    def dead_letter_routing_key(self) -> str | None:
        return self.arguments.text("x-dead-letter-routing-key")


@dataclass(frozen=True)
class Binding:
    """A binding from an exchange to a queue or to another exchange."""

    source: str
    destination: str
    routing_key: str
    destination_is_queue: bool = True
    arguments: Arguments = field(default_factory=Arguments)

    @property
    def identity(self) -> Identity:
        kind = "queue" if self.destination_is_queue else "exchange"
        arguments = ",".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return ("binding", self.source, kind, self.destination, self.routing_key, arguments)


BrokerObject: TypeAlias = Exchange | Queue | Binding


@dataclass(frozen=True)
class Definitions:
    """A set of exchanges, queues and bindings of one vhost."""

    exchanges: frozenset[Exchange] = frozenset()
    queues: frozenset[Queue] = frozenset()
    bindings: frozenset[Binding] = frozenset()

    @classmethod
    def of(cls, objects: Iterable[BrokerObject]) -> Definitions:
        """Sort a mixed iterable into definitions."""
        everything = list(objects)
        return cls(
            exchanges=frozenset(obj for obj in everything if isinstance(obj, Exchange)),
            queues=frozenset(obj for obj in everything if isinstance(obj, Queue)),
            bindings=frozenset(obj for obj in everything if isinstance(obj, Binding)),
        )

    def __or__(self, other: Definitions) -> Definitions:
        return Definitions(
            self.exchanges | other.exchanges,
            self.queues | other.queues,
            self.bindings | other.bindings,
        )

    def __iter__(self) -> Iterator[BrokerObject]:
        """Everything in the order in which it can be declared."""
        yield from sorted(self.exchanges, key=lambda exchange: exchange.name)
        yield from sorted(self.queues, key=lambda queue: queue.name)
        yield from sorted(self.bindings, key=lambda binding: binding.identity)

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.queues) + len(self.bindings)

    def without_taps(self) -> Definitions:
        """What is left without Delayboard's own taps: a tap is never where a message should go."""
        return Definitions(
            self.exchanges,
            frozenset(q for q in self.queues if not is_tap(q.name)),
            frozenset(b for b in self.bindings if not is_tap(b.destination)),
        )

    def without_interceptions(
        self, known: Mapping[str, str] | None = None
    ) -> tuple[Definitions, dict[str, str]]:
        """What is left without interceptions (topology/transfer/interception.py), and the queues
        that they intercept, by their names; `known` are those that were read before.

        The binding of such a queue is as before.
        """
        if not (known or any(is_interception(exchange.name) for exchange in self.exchanges)):
            return self, {}
        queues = dict(known or {})
        for one in self.bindings:
            if is_interception(one.source) and one.source.endswith(".out"):
                queues[one.source.removesuffix(".out")] = one.destination
        bindings = set()
        for one in self.bindings:
            queue = queues.get(one.destination.removesuffix(".in"))
            if not (is_interception(one.source) or is_interception(one.destination)):
                bindings.add(one)
            elif queue is not None and not is_interception(one.source):
                bindings.add(replace(one, destination=queue, destination_is_queue=True))
        left = Definitions(
            frozenset(one for one in self.exchanges if not is_interception(one.name)),
            frozenset(one for one in self.queues if not is_interception(one.name)),
            frozenset(bindings),
        )
        return left, queues

    def without_probes(self) -> Definitions:
        """What is left without probe queues, their bindings, and the queues that only probes
        wait in."""
        return Definitions(
            self.exchanges,
            frozenset(
                queue
                for queue in self.queues
                if not is_probe(queue.name) and not is_probe(queue.dead_letter_routing_key or "")
            ),
            frozenset(
                binding
                for binding in self.bindings
                if not is_probe(binding.destination) and not is_probe(binding.routing_key)
            ),
        )

    def exchange(self, name: str) -> Exchange | None:
        return self._exchanges_by_name.get(name)

    def queue(self, name: str) -> Queue | None:
        return self._queues_by_name.get(name)

    def get(self, identity: Identity) -> BrokerObject | None:
        return self._by_identity.get(identity)

    def leaving(self, source: str) -> Sequence[Binding]:
        """The bindings that leave an exchange, in a stable order."""
        return self._bindings_by_source.get(source, ())

    def leads(self, source: str, queue: str) -> Sequence[Binding]:
        """The bindings from an exchange to a queue, in a stable order."""
        return self._bindings_to_queues.get((source, queue), ())

    def sources(self, queue: str) -> Sequence[str]:
        """The exchanges with a binding to a queue, by name."""
        return self._sources_of_queues.get(queue, ())

    def dying_into(self, exchange: str) -> Sequence[Queue]:
        """The queues with this dead-letter exchange, by name."""
        return self.dying.get(exchange, ())

    def only(self, identities: Iterable[Identity]) -> Definitions:
        """The definitions of those of these objects that exist."""
        found = (self.get(identity) for identity in identities)
        return Definitions.of(obj for obj in found if obj is not None)

    def without(self, identities: Iterable[Identity]) -> Definitions:
        """The definitions without the objects of these identities."""
        excluded = frozenset(identities)
        return Definitions.of(obj for obj in self if obj.identity not in excluded)

    # Kept with the frozen value, which they never outdate: a vhost has tens of thousands.
    @cached_property
    def _exchanges_by_name(self) -> Mapping[str, Exchange]:
        return {exchange.name: exchange for exchange in self.exchanges}

    @cached_property
    def _queues_by_name(self) -> Mapping[str, Queue]:
        return {queue.name: queue for queue in self.queues}

    @cached_property
    def _bindings_by_source(self) -> Mapping[str, Sequence[Binding]]:
        ordered = sorted(self.bindings, key=lambda binding: binding.identity)
        return _group((binding.source, binding) for binding in ordered)

    @cached_property
    def _bindings_to_queues(self) -> Mapping[tuple[str, str], Sequence[Binding]]:
        return _group(
            ((binding.source, binding.destination), binding)
            for leaving in self._bindings_by_source.values()
            for binding in leaving
            if binding.destination_is_queue
        )

    @cached_property
    def _sources_of_queues(self) -> Mapping[str, Sequence[str]]:
        return _group((queue, source) for source, queue in sorted(self._bindings_to_queues))

    @cached_property
    def dying(self) -> Mapping[str, Sequence[Queue]]:
        """The queues with a dead-letter exchange, by it and by name."""
        return _group(
            (queue.dead_letter_exchange, queue)
            for queue in sorted(self.queues, key=lambda queue: queue.name)
            if queue.dead_letter_exchange is not None
        )

    @cached_property
    def _by_identity(self) -> Mapping[Identity, BrokerObject]:
        everything: tuple[BrokerObject, ...] = (*self.exchanges, *self.queues, *self.bindings)
        return {obj.identity: obj for obj in everything}


def _group(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


# Exchanges that every virtual host has beside the default one, and no export lists.
PREDECLARED = Definitions.of(
    [
        Exchange("amq.direct"),
        Exchange("amq.fanout", "fanout"),
        Exchange("amq.headers", "headers"),
        Exchange("amq.match", "headers"),
        Exchange("amq.rabbitmq.trace", "topic"),
        Exchange("amq.topic", "topic"),
    ]
)
