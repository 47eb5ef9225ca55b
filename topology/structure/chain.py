"""A chain of delay queues: where messages enter it, how long they wait, where they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from topology.definitions import Arguments, Binding, Definitions, Queue
from topology.delays import format_delay

# Most queues or delays that a sentence lists; more are counted.
MOST_NAMES = 3
DELAYED_RETRY = "x-delayed-retry-type"


@dataclass(frozen=True)
class Entry:
    """A way into the delay queue `queue`: the last binding of it, or its name at the default
    exchange "".

    `failing` are the queues whose dead letters come this way; without one, messages are published.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: Arguments = field(default_factory=Arguments)
    failing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exit:
    """How messages leave the delay queue `queue`; a `routing_key` of None: with their own."""

    queue: str
    exchange: str
    routing_key: str | None


@dataclass(frozen=True)
class Chain:
    """Delay queues that belong together.

    `queues` are their names, the shortest TTL first. `destinations` are the queues in which its
    messages finally arrive, `failing` those whose dead letters enter it. It `schedules` where
    messages are published into it, and `retries` where failed messages return through it to the
    queue in which they failed; both where structure does not show which. `definitions` is all that
    its routes need: the delay queues, the exchanges and bindings before and behind them, failing
    queues and destinations. `links` are the pairs of its queues of which the first may expire into
    the second. A quorum queue with RabbitMQ's delayed retry is a chain of its own:
    then the queue, its destination and the failing queue are one. `held_by` is the library whose
    consumers take its messages and hold them until they are due, "" where RabbitMQ keeps them.
    """

    name: str
    queues: tuple[str, ...]
    entries: tuple[Entry, ...]
    exits: tuple[Exit, ...]
    destinations: tuple[str, ...]
    schedules: bool
    retries: bool
    definitions: Definitions
    links: tuple[tuple[str, str], ...] = ()
    held_by: str = ""

    @property
    def failing(self) -> tuple[str, ...]:
        return tuple(sorted({name for entry in self.entries for name in entry.failing}))

    @property
    def is_native(self) -> bool:
        """Whether it is one quorum queue with RabbitMQ's delayed retry."""
        return self.queues == self.destinations

    @property
    def missing(self) -> tuple[str, ...]:
        """The exchanges and queues without which messages are lost after their delay."""
        lost = {
            f"exchange “{one.exchange}”" if one.exchange else f"queue “{one.routing_key}”": None
            for one in self.exits
            if not (
                self.definitions.exchange(one.exchange)
                if one.exchange
                else one.routing_key is None or self.definitions.queue(one.routing_key)
            )
        }
        return tuple(
            f"The {what} is missing, so RabbitMQ drops messages after their delay." for what in lost
        )

    def queue(self, name: str) -> Queue:
        """Raises KeyError for a queue that is none of it."""
        found = self.definitions.queue(name)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def waiting(self) -> tuple[Queue, ...]:
        """The delay queues of the chain."""
        return tuple(map(self.queue, self.queues))

    @property
    def delays(self) -> tuple[timedelta, ...]:
        """The TTLs of its queues, the shortest first; empty where only messages state one."""
        stated = {queue.message_ttl for queue in self.waiting}
        return tuple(sorted(ttl for ttl in stated if ttl is not None))

    @property
    def phrase(self) -> str:
        """The chain in one plain sentence."""
        if self.is_native:
            return (
                f"Failed messages of {self.queues[0]} wait in the queue itself (delayed retry of "
                "RabbitMQ)."
            )
        where = _list_names(self.queues)
        if self.held_by:
            return (
                f"Workers of {self.held_by} hold new and failed messages of {where} until they are "
                f"due, then publish them to {_list_names(self.destinations)}."
            )
        to = _list_names(self.destinations) or "no queue"
        if self.retries and not self.schedules:
            failing = _list_names(self.failing or self.destinations)
            return f"Failed messages of {failing} wait {self._time} in {where}, then return."
        if self.failing and not self.schedules:
            failing = _list_names(self.failing)
            return f"Dead letters of {failing} wait {self._time} in {where}, then go to {to}."
        which = "New and failed messages" if self.retries else "Messages"
        return f"{which} wait {self._time} in {where}, then arrive in {to}."

    @property
    def _time(self) -> str:
        delays = self.delays
        own = any(queue.message_ttl_ms is None for queue in self.waiting)
        if not delays:
            return "as long as their own expiration states"
        shown = [format_delay(one) for one in delays]
        if len(shown) > MOST_NAMES:
            shown = [f"{shown[0]} to {shown[-1]}"]
        shown += ["their own expiration"] if own else []
        return " or ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _list_names(names: Sequence[str]) -> str:
    """Up to three of them in words."""
    if len(names) > MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} other queues"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def as_document(chain: Chain) -> Mapping[str, object]:
    """What commands print of it as JSON."""
    return {
        "name": chain.name,
        "phrase": chain.phrase,
        "schedules": chain.schedules,
        "retries": chain.retries,
        "queues": [
            {"name": name, "ttl_ms": chain.queue(name).message_ttl_ms} for name in chain.queues
        ],
        "entries": [
            {
                "queue": entry.queue,
                "exchange": entry.exchange,
                "routing_key": entry.routing_key,
                "dead_letters_of": list(entry.failing),
            }
            for entry in chain.entries
        ],
        "exit": [
            {"queue": one.queue, "exchange": one.exchange, "routing_key": one.routing_key}
            for one in chain.exits
        ],
        "destinations": list(chain.destinations),
    }


def bindings_into(definitions: Definitions, queue: str) -> Sequence[Binding]:
    """The bindings from exchanges to a queue."""
    return [
        one for source in definitions.sources(queue) for one in definitions.leads(source, queue)
    ]
