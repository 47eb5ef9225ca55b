"""Which destinations of a topology RabbitMQ cannot route to, and what is stuck for that: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import Binding, Definitions, Queue
from topology.patterns.pattern import ParamsError, Pattern
from topology.routing.walk import Index, walk
from topology.snapshot import Snapshot, count_stuck_in, has_stuck

# Delay of the check, rounded up to the shortest that the pattern has.
SHORTEST = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Unroutable:
    """`is_bound`: its binding exists, and nothing behind it takes the message.

    `is_dropped`: RabbitMQ drops the message; else the last delay queue keeps it.
    """

    is_bound: bool
    is_dropped: bool


def has_free_destinations(pattern: Pattern, params: Any) -> bool:
    """Whether its targets are bound one by one, so that a binding can be missing."""
    return pattern.destinations(params, Definitions()) is not None


def find_unroutable(
    pattern: Pattern, params: Any, names: Iterable[str], snapshot: Snapshot
) -> dict[str, Unroutable]:
    """Those of these destinations that no delayed message reaches now, found by a walk."""
    index = Index.of(snapshot.definitions.without_taps())
    found = {}
    for name in names:
        try:
            route = pattern.route(params, SHORTEST, name)
        except ParamsError:
            continue
        walked = walk(index, route.exchange, route.routing_key, version=snapshot.version_tuple)
        if not walked.delivered:
            found[name] = Unroutable(
                is_bound=is_bound(route.declares, snapshot.definitions),
                is_dropped=not any(outcome.ending == "stuck" for outcome in walked.outcomes),
            )
    return found


def is_bound(declares: Definitions, found: Definitions) -> bool:
    """Whether the bindings that a route declares exist, to a queue or to an exchange."""
    there = {(one.source, one.destination, one.routing_key) for one in found.bindings}
    return all(
        (obj.source, obj.destination, obj.routing_key) in there
        for obj in declares
        if isinstance(obj, Binding)
    )


def count_stuck(
    queues: Iterable[Queue], snapshot: Snapshot, earlier: Snapshot | None = None
) -> Mapping[str, int] | None:
    """How many messages are stuck, by at-least-once queue; None where a number is not known.

    `earlier`, some seconds older, keeps what is on its way from being counted.
    """
    stuck = {}
    for queue in queues:
        if queue.arguments.text("x-dead-letter-strategy") != "at-least-once":
            continue
        counts = []
        for seen in (snapshot, earlier) if earlier else (snapshot,):
            numbers = seen.numbers.get(queue.name)
            count = count_stuck_in(queue, numbers)
            if count is None:
                return None
            counts.append(count if has_stuck(queue, numbers) else 0)
        if number := min(counts):
            stuck[queue.name] = number
    return stuck
