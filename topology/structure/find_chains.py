"""The delay queues of a vhost, and the chains that they form.

A delay queue is one that messages leave by expiring, towards a dead-letter exchange: it has a TTL,
or its messages have expirations of their own, and nobody consumes from it. Without a dead-letter
exchange a TTL deletes messages: that is retention, no delay. One more kind is a queue whose
consumers keep the delay (held.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TypeAlias

from topology.clients.dramatiq import find_held
from topology.definitions import Binding, BrokerObject, Definitions, Queue, has_dead_letter_name
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.index import Index, MessageKeys
from topology.structure.chain import DELAYED_RETRY, Chain, Entry, Exit, bindings_into
from topology.structure.held import make_held

# Most ways to wait of a queue: one with more was not built for retries.
MOST_WAITS = 50
# Names of delay queues, where the structure alone could be that of a work queue.
_DELAY_NAME = re.compile(
    r"delay|wait|retr(?:y|ies)|schedul|defer|hold|later|back-?off|postpon|timer|timeout",
    re.IGNORECASE,
)
_RETRY_NAME = re.compile(r"retr(?:y|ies)|dlq|back-?off|redeliver|requeue", re.IGNORECASE)


def find_chains(found: Definitions, consumed: AbstractSet[str] = frozenset()) -> Sequence[Chain]:
    """Every chain of a vhost, by name.

    `found` has policies folded into the arguments. `consumed` are the queues that have consumers;
    in exported definitions nothing shows them, so that names decide where structure leaves it open.
    """
    return _Vhost(found.without_taps().without_probes(), consumed).chains()


def make_chain(name: str, queues: Iterable[str], found: Definitions) -> Chain:
    """The chain of these delay queues, as it was found once; queues that are missing are left out.

    `found` is a vhost, or the `definitions` of a chain.
    """
    if (native := found.queue(name)) is not None and _has_delayed_retry(native):
        return _make_native(native)
    queues = tuple(queues)
    held = find_held(found)
    if len(queues) == 1 and queues[0] in held:
        return replace(make_held(queues[0], held[queues[0]], found), name=name)
    return replace(
        _Vhost(found.without_taps().without_probes(), frozenset(), queues).chain(), name=name
    )


def is_delay(queue: Queue) -> bool:
    """Whether messages wait in it until RabbitMQ sends them on, as far as its arguments show."""
    return (bool(queue.message_ttl_ms) and _dead_letters(queue)) or _has_delayed_retry(queue)


def may_delay(queue: Queue) -> bool:
    """Whether a queue without a TTL is called as delay queues are, whose messages state their
    expirations."""
    is_untimed = "x-message-ttl" not in queue.arguments and _dead_letters(queue)
    return is_untimed and bool(_DELAY_NAME.search(queue.name))


class Groups:
    """Names that are joined to groups."""

    def __init__(self, names: Iterable[str]) -> None:
        self._root = {name: name for name in names}

    def root(self, name: str) -> str:
        while (above := self._root[name]) != name:
            self._root[name] = name = self._root[above]
        return name

    def join(self, one: str, other: str) -> None:
        self._root[self.root(one)] = self.root(other)

    def all(self) -> Iterable[Sequence[str]]:
        groups: dict[str, list[str]] = defaultdict(list)
        for name in self._root:
            groups[self.root(name)].append(name)
        return groups.values()


# Queue -> the exchanges whose bindings lead there last; "" is the default one.
_Reached: TypeAlias = defaultdict[str, set[str]]


class _Vhost:
    """A vhost while its chains are looked for. Each question to the graph is answered once."""

    def __init__(
        self,
        found: Definitions,
        consumed: AbstractSet[str],
        timed: Iterable[str] | None = None,
    ) -> None:
        self.found, self.consumed = found, consumed
        self._index = Index(found)
        self._message_keys = MessageKeys(self._index)
        self._reached: dict[tuple[str, Sequence[str] | None], _Reached] = {}
        self._behind: dict[str, _Reached] = {}
        self._splits: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
        self._held = find_held(found)
        if timed is not None:
            named = (found.queue(name) for name in timed)
            self.timed = {queue.name: queue for queue in named if queue is not None}
            return
        self.timed = {q.name: q for q in found.queues if self._is_timed(q)}
        for queue in self._find_untimed():
            self.timed[queue.name] = queue
        # Of queues that expire into one another, the work queue is the one not named as a
        # delay. Consumers show it in a broker; in exported definitions only the name does.
        for name in [name for name in self.timed if not _DELAY_NAME.search(name)]:
            others = self.behind(self.timed[name]).keys() & self.timed.keys() - {name}
            if any(
                _DELAY_NAME.search(other) and name in self.behind(self.timed[other])
                for other in others
            ):
                del self.timed[name]

    def reach(self, exchange: str, keys: Sequence[str] | None) -> _Reached:
        """The queues that messages with these keys reach, with any key for None."""
        known = self._reached.get((exchange, keys))
        if known is None:
            known = self._reached[exchange, keys] = self._follow(exchange, keys)
        return known

    def _follow(self, exchange: str, keys: Sequence[str] | None) -> _Reached:
        """A headers exchange may lead anywhere, and so may an exchange of an unknown type."""
        reached: _Reached = defaultdict(set)
        if not exchange:
            for key in keys or ():
                if key in self._index.queues:
                    reached[key].add("")
            return reached
        waiting, seen = [exchange], {exchange}
        while waiting:
            there = self._index.exchanges.get(waiting.pop())
            if there is None:
                continue
            if keys is None or kind_of(there) not in ("direct", "topic"):
                leading = [
                    (one.destination_is_queue, one.destination)
                    for one in self.found.leaving(there.name)
                ]
                is_sure = kind_of(there) == "fanout"
            else:
                leading = list(self._index.lead_on(there, keys, {}, ()))
                is_sure = "alternate-exchange" not in there.arguments or all(
                    any(self._index.lead_on(there, (key,), {}, ())) for key in keys
                )
            for is_queue, name in leading:
                if is_queue and name in self._index.queues:
                    reached[name].add(there.name)
            further = [name for is_queue, name in leading if not is_queue]
            alternate = there.arguments.text("alternate-exchange")
            if alternate and not (leading and is_sure):
                further.append(alternate)
            waiting.extend(name for name in further if name not in seen)
            seen.update(further)
        return reached

    def behind(self, queue: Queue) -> _Reached:
        """The queues that its dead letters may reach.

        Where none has the key of a dead letter, CC keys may lead on: RabbitMQ routes by them too.
        """
        if queue.name not in self._behind:
            exchange = queue.dead_letter_exchange or ""
            keys = self._keys_of(queue)
            reached = self.reach(exchange, keys)
            if queue.dead_letter_routing_key is None:
                if not exchange:
                    reached = self.reach("", (*(keys or ()), *self._names_before(queue)))
                elif not reached and keys is not None:
                    reached = self.reach(exchange, None)
            self._behind[queue.name] = reached
        return self._behind[queue.name]

    def _keys_of(self, queue: Queue) -> Sequence[str] | None:
        """The keys of its dead letters: of its bindings, and its name at the default exchange."""
        if queue.dead_letter_routing_key is not None:
            return (queue.dead_letter_routing_key,)
        keys = self._message_keys.of(queue.name)
        return None if keys is None else tuple(sorted(keys))

    def _names_before(self, queue: Queue) -> Iterator[str]:
        """The queues whose dead letters may come into this one: their names are the keys of what
        was published to them through the default exchange, and dead letters keep their keys."""
        waiting, seen = list(self.found.sources(queue.name)), set[str]()
        while waiting:
            if (exchange := waiting.pop()) not in seen:
                seen.add(exchange)
                waiting += self._leading.get(exchange, ())
                for other in self.found.dying_into(exchange):
                    if other.dead_letter_routing_key is None:
                        yield other.name

    def _is_timed(self, queue: Queue) -> bool:
        """Whether it is a delay queue by its own TTL.

        A work queue whose old messages become dead letters has a TTL too: consumers show it, or
        that all of them end in queues for failed messages.
        """
        if not queue.message_ttl_ms or not _dead_letters(queue) or queue.name in self.consumed:
            return False
        ends = self.behind(queue).keys() - {queue.name}
        is_retention = bool(ends) and all(has_dead_letter_name(name) for name in ends)
        return not is_retention or bool(_DELAY_NAME.search(queue.name))

    def _find_untimed(self) -> Iterator[Queue]:
        """Delay queues whose messages have expirations of their own.

        They look like work queues with a dead-letter queue. Those whose name says so, and those to
        which a consumed queue gives its dead letters that come back to it.
        """
        for queue in self.found.queues:
            if (
                "x-message-ttl" in queue.arguments
                or not _dead_letters(queue)
                or queue.name in self.consumed
                or queue.name in self._held
                or _has_delayed_retry(queue)
            ):
                continue
            ends = self.behind(queue).keys() - {queue.name}
            comes_back = any(
                queue.name in self.behind(self._index.queues[name])
                for name in ends & self.consumed
                if _dead_letters(self._index.queues[name])
            )
            if not (comes_back or _DELAY_NAME.search(queue.name)) or ends & self.timed.keys():
                continue
            if not all(map(has_dead_letter_name, ends)):
                yield queue

    def chains(self) -> Sequence[Chain]:
        """The chains. Delay queues are of one chain if they are linked, or end in the same queues
        and both take dead letters or both do not, or reach no queue by their exit.
        """
        finals = self._find_finals()
        feeding = self._find_feeding(finals)
        fed = {name for _, name in feeding}
        groups = Groups(self.timed)
        first: dict[object, str] = {}
        for name, queue in self.timed.items():
            for other in self._split(queue)[1]:
                groups.join(name, other)
        for name, queue in self.timed.items():
            exit_of = (queue.dead_letter_exchange, queue.dead_letter_routing_key)
            key = (finals[name] or exit_of, name in fed)
            groups.join(name, first.setdefault(key, name))
        made = [self._make(names, finals, feeding) for names in groups.all()]
        made += [_make_native(q) for q in self.found.queues if _has_delayed_retry(q)]
        made += [make_held(name, work, self.found) for name, work in self._held.items()]
        return _name_apart(sorted(made, key=lambda one: (one.name, not one.retries, one.queues)))

    def chain(self) -> Chain:
        """All of its delay queues as one."""
        finals = self._find_finals()
        return self._make(self.timed, finals, self._find_feeding(finals))

    def _split(self, queue: Queue) -> tuple[frozenset[str], frozenset[str]]:
        """The work queues and the delay queues that its dead letters may reach.

        Queues with one exit share the answer: thousands may lead to thousands.
        """
        reached = self.behind(queue)
        known = self._splits.get(id(reached))
        if known is None:
            delays = frozenset(reached.keys() & self.timed.keys())
            known = self._splits[id(reached)] = (frozenset(reached.keys() - delays), delays)
        return known

    def _find_finals(self) -> Mapping[str, frozenset[str]]:
        """Where messages of each delay queue finally arrive, over as many delays as it takes."""
        finals: dict[str, frozenset[str]] = {}
        for name in self.timed:
            ends: dict[int, frozenset[str]] = {}
            waiting, seen = [name], {name}
            while waiting:
                work, delays = self._split(self.timed[waiting.pop()])
                ends[id(work)] = work
                waiting.extend(delays - seen)
                seen |= delays
            finals[name] = _join(ends.values())
        return finals

    def _find_feeding(
        self, finals: Mapping[str, frozenset[str]]
    ) -> Mapping[tuple[str, str], set[str]]:
        """The queues whose dead letters enter, by the exchange of the last binding and the delay
        queue. Of many it is those that lead back, and of many more none."""
        feeding: dict[tuple[str, str], set[str]] = defaultdict(set)
        for work in self.found.queues:
            if work.name in self.timed or not _dead_letters(work):
                continue
            entered: Collection[str] = self._split(work)[1]
            if len(entered) > MOST_WAITS:
                entered = [name for name in entered if work.name in finals[name]]
            if len(entered) > MOST_WAITS:
                continue
            for name in entered:
                for exchange in self.behind(work)[name]:
                    feeding[exchange, name].add(work.name)
        return feeding

    def _make(
        self,
        members: Iterable[str],
        finals: Mapping[str, frozenset[str]],
        feeding: Mapping[tuple[str, str], set[str]],
    ) -> Chain:
        queues = sorted(
            (self.timed[name] for name in members),
            key=lambda queue: (queue.message_ttl or timedelta(0), queue.name),
        )
        names = tuple(queue.name for queue in queues)
        own = frozenset(names)
        destinations = tuple(
            sorted(_join({id(f): f for f in map(finals.get, names) if f}.values()))
        )
        entries = tuple(entry for queue in queues for entry in self._entries(queue, feeding))
        exits = tuple(
            Exit(q.name, q.dead_letter_exchange or "", q.dead_letter_routing_key) for q in queues
        )
        failing = {name for entry in entries for name in entry.failing}
        for_failed = self._find_exchanges(failing | set(names))
        published = [
            entry for entry in entries if not entry.failing and entry.exchange not in for_failed
        ]
        named = {name for entry in published for name in (entry.queue, entry.exchange)}
        named |= {one.exchange for one in exits} if published else set()
        is_named = any(map(_RETRY_NAME.search, named))
        return Chain(
            name=destinations[0] if len(destinations) == 1 else _choose_name(exits, names),
            queues=names,
            entries=entries,
            exits=exits,
            destinations=destinations,
            schedules=bool(published),
            retries=bool(failing & set(destinations)) or is_named,
            definitions=self._close(queues, entries, failing | set(destinations)),
            links=tuple(
                (queue.name, other)
                for queue in queues
                for other in sorted((self._split(queue)[1] & own) - {queue.name})
            ),
        )

    def _entries(
        self, queue: Queue, feeding: Mapping[tuple[str, str], set[str]]
    ) -> Iterator[Entry]:
        """The entries: each binding, and the queue's name where nothing else leads into it, or
        where other queues dead-letter to it by name.
        """
        bindings = bindings_into(self.found, queue.name)
        for one in bindings:
            failing = tuple(sorted(feeding.get((one.source, queue.name), ())))
            yield Entry(queue.name, one.source, one.routing_key, one.arguments, failing)
        by_name = tuple(sorted(feeding.get(("", queue.name), ())))
        if by_name or not bindings:
            yield Entry(queue.name, "", queue.name, failing=by_name)

    def _find_exchanges(self, queues: Iterable[str]) -> AbstractSet[str]:
        """The exchanges that dead letters of these queues may pass, alternate exchanges
        included.
        """
        found = (self.found.queue(name) for name in queues)
        into = {queue.dead_letter_exchange or "" for queue in found if queue} - {""}
        return {one.name for name in into for one in self._index.reach(name).exchanges}

    def _close(
        self, queues: Sequence[Queue], entries: Sequence[Entry], others: Iterable[str]
    ) -> Definitions:
        """All objects that a route into, through and out of these queues needs."""
        objects: set[BrokerObject] = set(queues)
        objects.update(filter(None, map(self.found.queue, others)))
        names = {queue.name for queue in objects if isinstance(queue, Queue)}
        before = {entry.exchange for entry in entries} - {""}
        behind = {queue.dead_letter_exchange or "" for queue in queues} - {""}
        waiting, seen = list(before | behind), before | behind
        while waiting:
            exchange = self.found.exchange(waiting.pop())
            if exchange is None:
                continue
            objects.add(exchange)
            alternate = exchange.arguments.text("alternate-exchange")
            further = set(self._leading.get(exchange.name, ())) | (
                {alternate} if alternate else set()
            )
            onward = self._onward.get(exchange.name, ())
            leading = {b for b in onward if not names.isdisjoint(self.reach(b.destination, None))}
            further |= {one.destination for one in leading}
            objects |= leading
            if alternate:
                # It gets what none of the bindings takes.
                objects.update(self.found.leaving(exchange.name))
            elif len(names) < len(self.found.leaving(exchange.name)):
                objects.update(b for name in names for b in self.found.leads(exchange.name, name))
            else:
                leaving = self.found.leaving(exchange.name)
                objects.update(
                    b for b in leaving if b.destination_is_queue and b.destination in names
                )
            waiting.extend(further - seen)
            seen |= further
        return Definitions.of(objects)

    @cached_property
    def _onward(self) -> Mapping[str, Sequence[Binding]]:
        """The bindings between exchanges, by their source."""
        found: dict[str, list[Binding]] = defaultdict(list)
        for one in self.found.bindings:
            if not one.destination_is_queue:
                found[one.source].append(one)
        return found

    @cached_property
    def _leading(self) -> Mapping[str, AbstractSet[str]]:
        """The exchanges from which one gets messages, by binding or as the alternate exchange."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.found.bindings:
            if not one.destination_is_queue:
                found[one.destination].add(one.source)
        for exchange in self.found.exchanges:
            if alternate := exchange.arguments.text("alternate-exchange"):
                found[alternate].add(exchange.name)
        return found


def _join(sets: Collection[frozenset[str]]) -> frozenset[str]:
    """One set of all; a single one stays the same object."""
    return next(iter(sets)) if len(sets) == 1 else frozenset().union(*sets)


def _dead_letters(queue: Queue) -> bool:
    return queue.dead_letter_exchange is not None and queue.type in ("classic", "quorum")


def _has_delayed_retry(queue: Queue) -> bool:
    stated = queue.arguments.text(DELAYED_RETRY)
    return queue.type == "quorum" and stated not in (None, "disabled")


def _make_native(queue: Queue) -> Chain:
    entry = Entry(queue.name, "", queue.name, failing=(queue.name,))
    one = (queue.name,)
    alone = Definitions.of([queue])
    return Chain(queue.name, one, (entry,), (), one, False, True, alone)


def _choose_name(exits: Sequence[Exit], queues: Sequence[str]) -> str:
    """The exchange through which all leave, else the first delay queue."""
    exchanges = {one.exchange for one in exits}
    return exchanges.pop() if len(exchanges) == 1 and "" not in exchanges else queues[0]


def _name_apart(chains: Sequence[Chain]) -> Sequence[Chain]:
    """Retries keep the name of their work queue, others of it get that of their first delay
    queue."""
    taken: set[str] = set()
    named = []
    for chain in chains:
        name = chain.name if chain.name not in taken else chain.queues[0]
        while name in taken:
            name += "+"
        taken.add(name)
        named.append(replace(chain, name=name))
    return named
