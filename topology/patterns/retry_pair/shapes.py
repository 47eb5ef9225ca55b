"""Retry pairs in a vhost under any names: a work queue and what its messages wait in, each the
other's way on when a message dies there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from topology.definitions import Binding, Definitions, Exchange, Identity, Queue, is_tap
from topology.patterns.retry_ladder.sets import read_rung
from topology.patterns.retry_loop.keys import matches
from topology.patterns.retry_loop.params import EXCHANGE_TYPES

# A queue with more ways to wait is none that somebody built for retries.
MOST_WAITS = 50
_LOOPED = frozenset(EXCHANGE_TYPES.values())


@dataclass(frozen=True)
class Pair:
    """A work queue with its waiting queues, and the bindings that lead there and back.

    `lost` names a missing exchange, "" for none: waiting messages cannot return without it.
    """

    work: Queue
    retries: tuple[Queue, ...]
    bindings: frozenset[Binding]
    lost: str = ""

    @property
    def queues(self) -> tuple[Queue, ...]:
        return (self.work, *self.retries)

    @property
    def exchanges(self) -> frozenset[str]:
        named = {queue.dead_letter_exchange or "" for queue in self.queues}
        return frozenset(named - {""})


@dataclass(frozen=True)
class _Branch:
    """Into a queue whose messages die of age; without a binding through the default exchange."""

    retry: Queue
    binding: Binding | None = None


@dataclass
class _Branches:
    """All routes from one exchange, by what a message dead-letters into from there: an exchange, or
    a queue through the default one. Also by its routing key, where a binding or queue states it:
    thousands of pairs may share their exchanges and differ by the key.
    """

    by_end: dict[Identity, list[_Branch]] = field(default_factory=lambda: defaultdict(list))
    by_key_in: dict[tuple[Identity, str], list[_Branch]] = field(
        default_factory=lambda: defaultdict(list)
    )
    by_key_out: dict[tuple[Identity, str | None], list[_Branch]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, branch: _Branch, *, is_direct: bool) -> None:
        end, out = _find_end(branch.retry), branch.retry.dead_letter_routing_key
        self.by_end[end].append(branch)
        if branch.binding is not None and is_direct:
            self.by_key_in[end, branch.binding.routing_key].append(branch)
            out = branch.binding.routing_key if out is None else out
        self.by_key_out[end, out].append(branch)


@dataclass(frozen=True)
class _Vhost:
    """The objects of a vhost, with the routes of each exchange cached."""

    found: Definitions
    _branches: dict[str, _Branches] = field(default_factory=dict)

    def kind(self, name: str) -> str:
        exchange = self.found.exchange(name)
        return exchange.type if exchange else ""

    def branches(self, exchange: str) -> _Branches:
        """From it into queues whose messages die of age."""
        if exchange not in self._branches:
            branches, is_direct = _Branches(), self.kind(exchange) == "direct"
            for binding in self.found.leaving(exchange):
                retry = self.found.queue(binding.destination)
                if binding.destination_is_queue and retry and _is_waiting_queue(retry):
                    branches.add(_Branch(retry, binding), is_direct=is_direct)
            self._branches[exchange] = branches
        return self._branches[exchange]

    def find_branches(self, work: Queue) -> Iterator[_Branch]:
        """Where the messages that this queue gives up may wait and die back into it."""
        exchange, key = work.dead_letter_exchange or "", work.dead_letter_routing_key
        if not exchange:
            retry = self.found.queue(key or "")
            yield from [_Branch(retry)] if retry and _is_waiting_queue(retry) else []
            return
        branches = self.branches(exchange)
        is_stated = key is not None and self.kind(exchange) == "direct"
        for end in self._ends(work):
            if is_stated:
                yield from branches.by_key_in.get((end, key or ""), ())
            elif end[0] == "exchange" and self.kind(end[1]) == "direct":
                keys = {binding.routing_key for binding in self.found.leads(end[1], work.name)}
                for out in (None, *sorted(keys)):
                    yield from branches.by_key_out.get((end, out), ())
            else:
                yield from branches.by_end.get(end, ())

    def _ends(self, work: Queue) -> Iterator[Identity]:
        yield ("queue", work.name)
        yield ("queue", "")
        for name in self.found.sources(work.name):
            yield ("exchange", name)

    def takes(self, binding: Binding, key: str | None) -> bool:
        """Whether a message with this key, None for any, may take the binding."""
        exchange = self.found.exchange(binding.source)
        return exchange is not None and (key is None or is_taken(exchange, binding, key))


def is_taken(exchange: Exchange, binding: Binding, key: str) -> bool:
    """Whether a message with this key takes a binding of the exchange, as far as keys decide."""
    if exchange.type == "topic":
        return matches(binding.routing_key, key)
    return exchange.type != "direct" or binding.routing_key == key


def find_pairs(found: Definitions) -> list[Pair]:
    """One for each work queue at most, by its name; loops and ladders are made of other parts."""
    vhost = _Vhost(found)
    works = sorted(
        (q for q in found.queues if "x-message-ttl" not in q.arguments and _dead_letters(q)),
        key=lambda queue: queue.name,
    )
    pairs = (_find_whole(vhost, work) or _find_without_return(vhost, work) for work in works)
    return [pair for pair in pairs if pair is not None]


def claims_of(found: Definitions, pairs: Iterable[Pair]) -> Iterator[frozenset[Identity]]:
    """Of each the queues, the bindings between its parts, and exchanges that serve nothing else."""
    pairs = list(pairs)
    inner = {binding for pair in pairs for binding in pair.bindings}
    own = {
        name
        for name in {name for pair in pairs for name in pair.exchanges}
        if found.exchange(name)
        and not name.startswith("amq.")
        and all(b in inner or is_tap(b.destination) for b in found.leaving(name))
    }
    for pair in pairs:
        exchanges = (("exchange", name) for name in pair.exchanges & own)
        bindings = (binding.identity for binding in pair.bindings)
        yield frozenset([*exchanges, *(queue.identity for queue in pair.queues), *bindings])


def _find_whole(vhost: _Vhost, work: Queue) -> Pair | None:
    near = list(islice(vhost.find_branches(work), MOST_WAITS + 1))
    closed = [
        (branch, back) for branch in near if (back := _find_return(vhost, work, branch)) is not None
    ]
    if not closed or len(near) > MOST_WAITS:
        return None
    retries = {branch.retry.name: branch.retry for branch, _ in closed}
    bindings = {
        binding for branch, back in closed for binding in (branch.binding, *back) if binding
    }
    return Pair(work, tuple(retries.values()), frozenset(bindings))


def _find_return(vhost: _Vhost, work: Queue, branch: _Branch) -> Sequence[Binding] | None:
    """The bindings by which what waited comes back, none through the default exchange.

    None where it does not: its key is that of the last queue that states one, else its own.
    """
    stated = work.dead_letter_routing_key
    if branch.binding is not None and not vhost.takes(branch.binding, stated):
        return None
    key = (
        stated
        if branch.retry.dead_letter_routing_key is None
        else branch.retry.dead_letter_routing_key
    )
    exchange = branch.retry.dead_letter_exchange or ""
    if not exchange:
        own = key if key is not None else _own_key(vhost, work, branch)
        return () if own == work.name else None
    if _is_loop(vhost.found.exchange(work.dead_letter_exchange or ""), vhost.found, exchange):
        return None
    if key is None and branch.binding is not None and vhost.kind(branch.binding.source) == "direct":
        key = branch.binding.routing_key
    back = [b for b in vhost.found.leads(exchange, work.name) if vhost.takes(b, key)]
    return back or None


def _own_key(vhost: _Vhost, work: Queue, branch: _Branch) -> str | None:
    """The name of the work queue where a message that was published to it by name may wait."""
    is_taken = branch.binding is not None and vhost.takes(branch.binding, work.name)
    return work.name if is_taken else None


def _find_without_return(vhost: _Vhost, work: Queue) -> Pair | None:
    """Waiting messages dead-letter into a missing exchange, and nothing else waits there."""
    dead = vhost.found.exchange(work.dead_letter_exchange or "")
    if dead is None or dead.type == "fanout" or len(vhost.found.dying_into(dead.name)) != 1:
        return None
    branches = [
        branch for branches in vhost.branches(dead.name).by_end.values() for branch in branches
    ]
    if len(branches) != 1 or branches[0].binding is None:
        return None
    branch, back = branches[0], branches[0].retry.dead_letter_exchange or ""
    if not back or vhost.found.exchange(back) or len(vhost.found.dying_into(back)) != 1:
        return None
    if not vhost.takes(branches[0].binding, work.dead_letter_routing_key):
        return None
    return Pair(work, (branch.retry,), frozenset([branches[0].binding]), back)


def _is_loop(dead: Exchange | None, found: Definitions, back: str) -> bool:
    """Whether this is the retry loop's to find: it comes back through a fanout exchange."""
    returning = found.exchange(back)
    is_fanout = returning is not None and returning.type == "fanout"
    return is_fanout and dead is not None and dead.type in _LOOPED


def _find_end(retry: Queue) -> Identity:
    if retry.dead_letter_exchange:
        return ("exchange", retry.dead_letter_exchange)
    return ("queue", retry.dead_letter_routing_key or "")


def _is_waiting_queue(queue: Queue) -> bool:
    return bool(queue.message_ttl_ms) and _dead_letters(queue) and read_rung(queue) is None


def _dead_letters(queue: Queue) -> bool:
    return queue.dead_letter_exchange is not None and queue.type in ("classic", "quorum")
