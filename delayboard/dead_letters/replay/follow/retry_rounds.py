"""How long a message may take to come back dead, and into which queues; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from delayboard.dead_letters.queues.feeds import feeds
from topology.definitions import MAXIMUM_TTL_MS, Queue
from topology.routing.consumer import delivery_limit
from topology.routing.walk import Index, walk
from topology.snapshot import Snapshot

# A mesh of queues has more ways than time.
MOST_STEPS = 20_000
LONGEST_PATH = 50
MOST_RETRIES = 1000
ZERO = timedelta(0)

# The queues that messages die into, by the queue in which they die.
Paths: TypeAlias = Mapping[str, Sequence[str]]


class Reached(NamedTuple):
    """A queue in which a publish ends, and how long it is on its way there."""

    queue: str
    after: timedelta


def find_paths(snapshot: Snapshot) -> Paths:
    """The paths of every queue with a dead-letter exchange, without Delayboard's taps."""
    found: dict[str, list[str]] = {}
    for target, into in feeds(snapshot).items():
        for feed in into:
            for source in feed.queues:
                found.setdefault(source, []).append(target)
    return {source: tuple(dict.fromkeys(targets)) for source, targets in found.items()}


def find_reached(snapshot: Snapshot, targets: Iterable[tuple[str, str]]) -> list[Reached]:
    """Where publishes to these exchanges with these keys end."""
    index = Index(snapshot.definitions.without_taps())
    found: dict[Reached, None] = {}
    for exchange, key in targets:
        walked = walk(
            index, exchange, key, version=snapshot.version_tuple, consumed=snapshot.consumed
        )
        found |= {Reached(one.queue, one.after): None for one in walked.outcomes if one.queue}
    return list(found)


def estimate_longest(
    snapshot: Snapshot, leading: Paths, start: str, ends: Collection[str] = ()
) -> timedelta:
    """The longest time from a failure in `start` to where it dies for good or comes back.

    The sum of the stays on the longest way on which no queue comes twice; what lies in one of
    `ends` is dead.
    """
    queues, steps = snapshot.definitions, 0

    def follow(name: str, passed: frozenset[str]) -> timedelta:
        nonlocal steps
        steps += 1
        queue = queues.queue(name)
        if queue is None or name in ends or steps > MOST_STEPS or len(passed) > LONGEST_PATH:
            return ZERO
        further = leading.get(name, ())
        rest = [follow(to, passed | {name}) for to in further if to not in passed and to != name]
        left = _estimate_wait(snapshot, queue) if further else ZERO
        return left + max(rest, default=ZERO) + _estimate_retries(queue, snapshot.version_tuple)

    return follow(start, frozenset())


def find_dead_ends(leading: Paths, starts: Collection[str]) -> list[str]:
    """The queues in which what fails in `starts` comes to lie for good."""
    seen, waiting = set(starts), list(starts)
    while waiting:
        fresh = [to for to in leading.get(waiting.pop(), ()) if to not in seen]
        seen.update(fresh)
        waiting += fresh
    return sorted(name for name in seen if name not in starts and not leading.get(name))


def _estimate_wait(snapshot: Snapshot, queue: Queue) -> timedelta:
    """In a queue that nobody consumes its messages wait until they expire."""
    is_delay = queue.message_ttl_ms is not None and queue.name not in snapshot.consumed
    return timedelta(milliseconds=queue.message_ttl_ms or 0) if is_delay else ZERO


def _estimate_retries(queue: Queue, version: tuple[int, ...]) -> timedelta:
    """All waits within a quorum queue of RabbitMQ 4.3 that delays what is returned.

    It waits x-delayed-retry-min after the first failure, twice that after the second, and so on
    up to x-delayed-retry-max (RabbitMQ docs, "Quorum Queues").
    """
    kind = queue.arguments.text("x-delayed-retry-type") or "disabled"
    shortest = queue.arguments.number("x-delayed-retry-min")
    limit = delivery_limit(queue, version)
    if version < (4, 3) or kind == "disabled" or shortest is None or limit is None:
        return ZERO
    most = queue.arguments.number("x-delayed-retry-max") or MAXIMUM_TTL_MS
    waits = (min(shortest * number, most) for number in range(1, min(limit, MOST_RETRIES) + 1))
    return timedelta(milliseconds=min(sum(waits), MAXIMUM_TTL_MS))
