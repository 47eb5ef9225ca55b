"""What a copy of a message means for a chain: it enters, leaves, or passes without a delay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

from topology.clients.attempts import count_failures
from topology.deaths import Death, History, newest_death, read_history
from topology.definitions import DELAY_HEADER, Queue
from topology.message import DEATH_HEADERS
from topology.routing.matching.index import Index
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading
from topology.structure.held import read_held

# Routes of so many exchanges, keys and headers are kept: a queue of its own for each delay and key
# needs as many.
MOST_ROUTES = 4096
# What routing reads besides the arguments of headers exchanges.
_ROUTING_HEADERS = frozenset({"CC", "BCC", DELAY_HEADER})


class Reader:
    """Reads copies for one chain, by the routes that its definitions give them."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._index = Index(chain.definitions)
        self._delays = {name: chain.queue(name) for name in chain.queues}
        ends = {queue.name for queue in chain.definitions.queues} - self._delays.keys()
        self._ends = frozenset(ends)
        bound = {name for one in chain.definitions.bindings for name in one.arguments}
        self._read = (bound | _ROUTING_HEADERS) - DEATH_HEADERS
        self._route = lru_cache(MOST_ROUTES)(self._walk)
        self._rounds = [frozenset(group) for group in self._group_linked()]

    def read(self, copy: Copy) -> Reading | None:
        """None for a copy that is none of this chain, or is between two of its queues."""
        if self._chain.held_by:
            return read_held(self._chain, copy)
        died = newest_death(copy.headers) or ("", "")
        entering, arriving = self._split(copy)
        if self._leaves(died, copy):
            if entering is not None:
                return None
            history = read_history(copy.headers)
            destination, queue = self._name_end(arriving, history, copy)
            attempt = count_failures(copy.headers, destination) or self._count_trips(history) or 1
            delay = self._find_delay(died[0], history)
            return Reading("exit", destination, queue, delay, attempt, *died)
        if entering is not None:
            history = read_history(copy.headers)
            destination, _ = self._name_end((entering,), history, copy)
            failures = count_failures(copy.headers, destination)
            attempt = failures or self._count_trips(history) + 1
            queue = entering.hops[0].queue
            return Reading("entry", destination, queue, entering.after, attempt, *died)
        if not arriving:
            return None
        destination, queue = self._name_end(arriving, History(), copy)
        return Reading("publish", destination, queue, timedelta(0), 0, *died)

    def _split(self, copy: Copy) -> tuple[RouteOutcome | None, Sequence[RouteOutcome]]:
        """The way of its copy that waits longest, and the others."""
        stated = tuple(
            (name, repr(copy.headers[name])) for name in self._read if name in copy.headers
        )
        outcomes = self._route(copy.exchange, copy.routing_key, copy.expiration, _Key(copy, stated))
        entering = [one for one in outcomes if one.hops and one.hops[0].queue in self._delays]
        if entering:
            return max(entering, key=lambda one: one.after), ()
        return None, [one for one in outcomes if one.hops]

    def _walk(
        self, exchange: str, routing_key: str, expiration: str | None, key: _Key
    ) -> Sequence[RouteOutcome]:
        headers = {name: value for name, value in key.headers.items() if name in self._read}
        return walk(
            self._index,
            exchange,
            routing_key,
            headers=headers,
            expiration=expiration,
            consumed=self._ends,
        ).outcomes

    def _leaves(self, died: tuple[str, str], copy: Copy) -> bool:
        """Whether it comes out of a delay queue, and was not published with an x-death of before:
        consumers copy headers."""
        queue, reason = died
        waited = self._delays.get(queue)
        if reason != "expired" or waited is None:
            return False
        key = waited.dead_letter_routing_key
        is_its_exit = copy.exchange == (waited.dead_letter_exchange or "")
        return is_its_exit and key in (None, copy.routing_key)

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

    def _find_delay(self, queue: str, history: History) -> timedelta:
        """How long it waited: by the queue it left, or by the route from its entry."""
        deaths = [death for death in history.deaths if death.queue in self._delays]
        linked = next(group for group in self._rounds if queue in group)
        first = next((one for one in deaths if one.queue in linked), None)
        if first is not None and len(linked) > 1:
            return self._find_delay_of_entry(first)
        own = next((one.original_expiration for one in deaths if one.queue == queue), None)
        return _find_wait(self._delays[queue], own)

    def _find_delay_of_entry(self, death: Death) -> timedelta:
        copy = Copy(death.exchange, death.routing_key, {}, death.original_expiration)
        entering, _ = self._split(copy)
        return entering.after if entering else _find_wait(self._delays[death.queue], None)

    def _count_trips(self, history: History) -> int:
        """How often it left the chain: queues that one trip passes count once."""
        return sum(
            max((history.count(name, "expired") for name in group), default=0)
            for group in self._rounds
        )

    def _group_linked(self) -> Iterator[set[str]]:
        """Queues that one trip may pass one after another, others alone."""
        left = dict.fromkeys(self._chain.queues)
        while left:
            group, waiting = set[str](), [next(iter(left))]
            while waiting:
                name = waiting.pop()
                if name not in left:
                    continue
                del left[name]
                group.add(name)
                waiting += [other for other in left if self._is_linked(name, other)]
            yield group

    def _is_linked(self, one: str, other: str) -> bool:
        return bool({(one, other), (other, one)} & set(self._chain.links))


class _Key:
    """The headers of a copy, equal to others that routing cannot tell apart."""

    __slots__ = ("_stated", "headers")

    def __init__(self, copy: Copy, stated: tuple[tuple[str, str], ...]) -> None:
        self.headers: Mapping[str, object] = copy.headers
        self._stated = stated

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
