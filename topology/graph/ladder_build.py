"""Definitions or a snapshot of them -> a ladder of delay levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.graph.ladder import NOWHERE, Destination, Ladder, Levels, Rung
from topology.graph.live_values import queue_mark
from topology.snapshot import QueueNumbers, Snapshot


def build_ladder(levels: Levels, found: Snapshot | Definitions, wanted: Definitions) -> Ladder:
    """The ladder as `found`; what of `wanted` is not there is missing.

    What differs from the wanted is drawn as it is. Delayboard's taps are no destinations.
    """
    whole = found.definitions if isinstance(found, Snapshot) else found
    numbers = found.numbers if isinstance(found, Snapshot) else None
    names = {*levels.names, levels.delivery}
    own = Definitions(
        frozenset(exchange for exchange in whole.exchanges if exchange.name in names),
        frozenset(queue for queue in whole.queues if queue.name in names),
        frozenset(binding for binding in whole.bindings if binding.source in names),
    )
    there = {obj.identity for obj in own}
    missing = [obj for obj in wanted if obj.identity not in there]
    lacks = _describe_missing(missing)
    queues = {queue.name: queue for queue in own.queues}
    for name in levels.names:
        if name in queues and queues[name].message_ttl_ms is None:
            lacks[name].append("TTL")
    rungs = []
    for level, name in enumerate(levels.names):
        rung = _rung(levels, level, queues.get(name), numbers)
        rungs.append(
            replace(rung, lacks=tuple(lacks[name]), mark="missing") if lacks[name] else rung
        )
    both = (one.without_taps() for one in (own, Definitions.of(missing)))
    ends = [end for one in both for end in one.leaving(levels.delivery)]
    return Ladder(
        rungs=tuple(reversed(rungs)),
        delivery=levels.delivery,
        delivery_missing="exchange" in lacks[levels.delivery],
        destinations=_destinations(ends, there, whole, numbers),
        is_seen=numbers is not None,
    )


def _describe_missing(missing: Iterable[BrokerObject]) -> defaultdict[str, list[str]]:
    """Name of a level or of delivery -> words for its missing objects.

    A level without its exchange cannot have a binding, so the binding is not listed too.
    """
    words: defaultdict[str, list[str]] = defaultdict(list)
    for obj in missing:
        if isinstance(obj, Exchange):
            words[obj.name].append("exchange")
        elif isinstance(obj, Queue):
            words[obj.name].append("queue")
        elif not words[obj.source]:
            into = obj.destination_is_queue
            words[obj.source].append("queue binding" if into else "next-level binding")
    return words


def _rung(
    levels: Levels, level: int, queue: Queue | None, numbers: Mapping[str, QueueNumbers] | None
) -> Rung:
    proper = levels.unit * (1 << level)
    ttl = proper if queue is None or queue.message_ttl is None else queue.message_ttl
    rung = Rung(level, levels.names[level], proper, ttl, queue)
    if queue is None or numbers is None:
        return rung
    known = numbers.get(queue.name, QueueNumbers())
    return replace(rung, numbers=known, mark=queue_mark(queue, known, is_level=True))


def _destinations(
    ends: Iterable[Binding],
    there: set[tuple[str, ...]],
    whole: Definitions,
    numbers: Mapping[str, QueueNumbers] | None,
) -> tuple[Destination, ...]:
    names = {binding.destination for binding in ends}
    leading = {binding.source for binding in whole.bindings if binding.source in names}
    leading |= {
        exchange.name
        for exchange in whole.exchanges
        if exchange.name in names and "alternate-exchange" in exchange.arguments
    }
    drawn = []
    for binding in sorted(ends, key=lambda binding: binding.identity):
        kind = "queue" if binding.destination_is_queue else "exchange"
        end = Destination(kind, binding.destination, binding.routing_key)
        queue = whole.queue(end.name) if kind == "queue" else None
        if binding.identity not in there:
            end = replace(end, missing=True, mark="missing")
        elif numbers is not None and queue is not None:
            known = numbers.get(end.name)
            end = replace(end, numbers=known, mark=queue_mark(queue, known))
        elif numbers is not None and kind == "exchange" and end.name not in leading:
            end = replace(end, mark=NOWHERE)
        drawn.append(end)
    return tuple(drawn)
