"""What a copy of a message means for a chain: it enters, leaves, or passes without a delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache

from topology.clients.describe import count_failures
from topology.deaths import History, newest_death
from topology.definitions import DELAY_HEADER, Queue
from topology.routing.matching.index import Index
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading
from topology.structure.find_chains import Groups, make_chain
from topology.structure.held import read_held
from topology.structure.named_queues import extend, find_templates

# Most routes of exchange, key and headers that are kept: a queue of its own for each delay and key
# needs as many.
MOST_ROUTES = 4096
# Most queues that clients declare for a delay for which a reader is kept.
MOST_NEW_QUEUES = 256
# Headers that routing reads besides the arguments of headers exchanges.
_COPY_HEADERS = frozenset({"CC", "BCC"})
_ROUTING_HEADERS = _COPY_HEADERS | {DELAY_HEADER}


class Reader:
    """Reads copies for one chain, by the routes that its definitions give them."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        # Dead letters pass internal exchanges, to which nobody can publish.
        public = frozenset(replace(one, internal=False) for one in chain.definitions.exchanges)
        self._index = Index(replace(chain.definitions, exchanges=public))
        self._delays = {name: chain.queue(name) for name in chain.queues}
        ends = {queue.name for queue in chain.definitions.queues} - self._delays.keys()
        self._ends = frozenset(ends)
        bound = {name for one in chain.definitions.bindings for name in one.arguments}
        self._read = tuple((bound | _ROUTING_HEADERS) - {"x-death"})
        self._read_by_key = tuple(name for name in self._read if name not in _COPY_HEADERS)
        self._route = lru_cache(MOST_ROUTES)(self._walk)
        # Queues that one trip may pass one after another, others alone.
        rounds = Groups(chain.queues)
        for one, other in chain.links:
            rounds.join(one, other)
        self._rounds = [frozenset(group) for group in rounds.all()]
        self._templates = find_templates(chain)
        self._reader_with = lru_cache(MOST_NEW_QUEUES)(self._make_reader_with)

    def read(self, copy: Copy) -> Reading | None:
        """None for a copy that is none of this chain, or is between two of its queues.

        Where the work queue itself delays, a publish into it waits for a consumer alone.
        """
        if self.chain.is_native:
            return None
        if self.chain.held_by:
            return read_held(self.chain, copy)
        if self._templates and (other := self._find_reader(copy)) is not None:
            return other.read(copy)
        died = newest_death(copy.headers) or ("", "")
        waited = self._find_left(died, copy)
        entering, arriving = self._split(copy, waited)
        if waited is not None:
            # RabbitMQ may route a copy to its destination, and another one into a delay again.
            if entering is not None and not arriving:
                return None
            history = copy.history
            destination, queue = self._name_end(arriving, history, copy)
            attempt = self._count_failures(copy, destination) or self._count_trips(history) or 1
            delay = self._find_delay(waited, history)
            return Reading("exit", destination, queue, delay, attempt, *died)
        if entering is not None:
            history = copy.history
            destination, _ = self._name_end((entering,), history, copy)
            failures = self._count_failures(copy, destination)
            attempt = failures or self._count_trips(history) + 1
            queue = entering.hops[0].queue
            return Reading("entry", destination, queue, entering.after, attempt, *died)
        if not arriving:
            return None
        destination, queue = self._name_end(arriving, History(), copy)
        return Reading("publish", destination, queue, timedelta(0), 0, *died)

    def _count_failures(self, copy: Copy, queue: str) -> int:
        """Symfony's queues come and go: only such a chain reads bodies."""
        return count_failures(copy.headers, queue, copy.body if self._templates else b"")

    def _find_reader(self, copy: Copy) -> Reader | None:
        """The reader with a queue that is new since the chain was read: the copy enters it, or left
        it.
        """
        died, reason = newest_death(copy.headers) or ("", "")
        names = (copy.routing_key, died if reason == "expired" else "")
        new = (self._reader_with(name) for name in names if name and name not in self._delays)
        return next((reader for reader in new if reader is not None), None)

    def _make_reader_with(self, name: str) -> Reader | None:
        for template in self._templates:
            if (queue := template.make(name)) is not None:
                found = extend(self.chain, template, queue)
                queues = (*self.chain.queues, name)
                return Reader(make_chain(self.chain.name, queues, found))
        return None

    def _split(
        self, copy: Copy, waited: Queue | None = None
    ) -> tuple[RouteOutcome | None, Sequence[RouteOutcome]]:
        """The way of its copy that enters and waits longest, and those that do not enter.

        `waited` is the delay queue that it left. With a key of that queue, RabbitMQ routes by no
        CC, which stays in the headers from 4.0 on (tried).
        """
        has_key = waited is not None and waited.dead_letter_routing_key is not None
        names = self._read_by_key if has_key else self._read
        headers = {name: copy.headers[name] for name in names if name in copy.headers}
        return self._route(copy.exchange, copy.routing_key, copy.expiration, _Key(headers))

    def _walk(
        self, exchange: str, routing_key: str, expiration: str | None, key: _Key
    ) -> tuple[RouteOutcome | None, Sequence[RouteOutcome]]:
        outcomes = walk(
            self._index,
            exchange,
            routing_key,
            headers=key.headers,
            expiration=expiration,
            consumed=self._ends,
        ).outcomes
        passing = [one for one in outcomes if one.hops]
        entering = [one for one in passing if one.hops[0].queue in self._delays]
        arriving = [one for one in passing if one.hops[0].queue not in self._delays]
        # Of queues behind a fanout the first by name, as at the exit.
        return min(entering, key=lambda one: (-one.after, one.queue), default=None), arriving

    def _find_left(self, died: tuple[str, str], copy: Copy) -> Queue | None:
        """The delay queue that it comes out of; None if it was published with an x-death of before:
        consumers copy headers."""
        queue, reason = died
        waited = self._delays.get(queue)
        if reason != "expired" or waited is None:
            return None
        key = waited.dead_letter_routing_key
        is_its_exit = copy.exchange == (waited.dead_letter_exchange or "")
        return waited if is_its_exit and key in (None, copy.routing_key) else None

    def _name_end(
        self, arriving: Sequence[RouteOutcome], history: History, copy: Copy
    ) -> tuple[str, str]:
        """The destination and the queue: of several that in which it failed, if it returns there.

        Without a queue the key of the dead letter stands for it.
        """
        queues = sorted({one.queue for one in arriving if one.queue not in self._delays})
        if queues:
            failed = [death.queue for death in history.deaths if death.queue in queues]
            return (failed or queues[:1])[-1], (failed or queues[:1])[-1]
        waited = next((self._delays.get(one.hops[-1].queue) for one in arriving), None)
        key = waited.dead_letter_routing_key if waited else None
        return (copy.routing_key if key is None else key), ""

    def _find_delay(self, left: Queue, history: History) -> timedelta:
        """How long it waited: in the queues of one trip, or by the route from its entry where it
        did not pass all of them as often."""
        linked = next(group for group in self._rounds if left.name in group)
        deaths = [one for one in history.deaths if one.queue in linked and one.reason == "expired"]
        if len({one.count for one in deaths}) > 1:
            death = deaths[0]
            copy = Copy(death.exchange, death.routing_key, {}, death.original_expiration)
            entering, _ = self._split(copy)
            return entering.after if entering else _find_wait(self._delays[death.queue], None)
        waits = (_find_wait(self._delays[one.queue], one.original_expiration) for one in deaths)
        return sum(waits, timedelta(0))

    def _count_trips(self, history: History) -> int:
        """How often it left the chain: queues that one trip passes count once."""
        return sum(
            max((history.count(name, "expired") for name in group), default=0)
            for group in self._rounds
        )


class _Key:
    """The headers that route a copy, equal to others that routing cannot tell apart."""

    __slots__ = ("_stated", "headers")

    def __init__(self, headers: Mapping[str, object]) -> None:
        self.headers = headers
        self._stated = tuple((name, repr(value)) for name, value in headers.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._stated == other._stated

    def __hash__(self) -> int:
        return hash(self._stated)


def _find_wait(queue: Queue, expiration: str | None) -> timedelta:
    """The smaller of its TTL and the expiration that the message had."""
    ttl = queue.message_ttl
    stated = [] if ttl is None else [ttl]
    if expiration is not None and expiration.isdecimal():
        stated.append(timedelta(milliseconds=int(expiration)))
    return min(stated) if stated else timedelta(0)
