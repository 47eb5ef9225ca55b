"""Observers of a replay: who would see its messages arrive, and who would see them die again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from analytics.models import Firehose
from delayboard.dead_letters.queues import peek
from delayboard.models import BackgroundTask, DeadLetterQueue, ReplayBatch, ReplayRoute
from delayboard.models.background_task import task_key
from topology.definitions import MAXIMUM_TTL_MS, Queue, is_own_queue
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError
from topology.patterns.table import find_retry_kinds
from topology.routing.context import delivery_limit
from topology.routing.walk import Index, walk
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.ends import Ends, find_ends

# Most steps through a mesh of queues, which has more paths than time.
MOST_STEPS = 20_000
LONGEST_PATH = 50
MOST_RETRIES = 1000
# Most targets, and queues of its messages, that are read of a replay; of more only the first.
MOST_ROUTES = 200
MOST_ITEMS = 1000
NAMED = 3
# Longest retry round that is waited for.
LONGEST_ROUND = timedelta(days=30)
ZERO = timedelta(0)


class Paths(NamedTuple):
    """`leading` are the queues that messages die into, by the queue in which they die."""

    leading: Mapping[str, Sequence[str]]
    ends: Ends


@dataclass(frozen=True)
class Scene:
    """A batch's targets in one snapshot: where its messages end, and their dead-letter queues.

    `ends` are the names of existing queues, including those that the messages were parked from.
    """

    snapshot: Snapshot
    routes: Sequence[ReplayRoute]
    starts: Sequence[Reached]
    paths: Paths
    ends: Sequence[str]


def make_scene(batch: ReplayBatch, snapshot: Snapshot) -> Scene:
    # In the order of the index routes_by_number, and no further, or all would be sorted.
    routes = list(batch.routes.order_by("-items_number")[:MOST_ROUTES])
    paths = find_paths(snapshot)
    starts = find_reached(snapshot, [(route.exchange, route.routing_key) for route in routes])
    # Queues with its dead letters, whatever their structure shows.
    items = batch.items.filter(position__lte=MOST_ITEMS, parked_message__isnull=False).order_by()
    parked_from = set(items.values_list("parked_message__queue", flat=True))
    found = set(find_dead_ends(snapshot, paths, {one.queue for one in starts})) | parked_from
    rows = DeadLetterQueue.objects.filter(broker=batch.broker)
    confirmed = dict(rows.values_list("queue", "is_confirmed"))
    ends = [
        name
        for name in sorted(found)
        if confirmed.get(name, True) and not is_own_queue(name) and snapshot.definitions.queue(name)
    ]
    return Scene(snapshot, routes, starts, paths, ends)


def estimate_round(batch: ReplayBatch, seen: Scene) -> timedelta:
    """How long a message may be on its way to its target, and from a failure there to its death."""
    delay = max((timedelta(milliseconds=route.after_ms) for route in seen.routes), default=ZERO)
    known = _read_topology_rounds(batch.broker)
    rounds = [
        max(one.after, delay)
        + max(
            estimate_longest(seen.snapshot, seen.paths, one.queue, seen.ends),
            known.get(one.queue, ZERO),
        )
        for one in seen.starts
    ]
    return min(max(rounds, default=delay), LONGEST_ROUND)


def _read_topology_rounds(broker: Broker) -> dict[str, timedelta]:
    """Work queue -> the longest time for which its topology lets a failed message wait."""
    found: dict[str, timedelta] = {}
    rows = Topology.objects.filter(broker=broker, state=State.APPLIED)
    for row in rows.filter(kind__in=find_retry_kinds()):
        try:
            params = row.parsed
        except ParamsError:
            continue
        waits = row.pattern.longest_retry(params)
        for queue in row.pattern.targets(params):
            found[queue] = max(found.get(queue, ZERO), waits)
    return found


def explain_unobserved_arrivals(batch: ReplayBatch, seen: Scene) -> str:
    """Why nobody sees them arrive; "" where a tap does, or behind a delay the firehose."""
    broker = batch.broker
    is_delayed = any(route.after_ms for route in seen.routes)
    if is_delayed and Firehose.objects.filter(broker=broker).exists():
        return ""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED).select_related("broker")
    taps = {row.tap_queue for row in applied if row.observes_arrivals}
    index = Index(seen.snapshot.definitions)
    if taps and any(_passes_tap(seen.snapshot, index, route, taps) for route in seen.routes):
        return ""
    return "Arrivals are not observed: no tap of a topology is on the route."


def _passes_tap(snapshot: Snapshot, index: Index, route: ReplayRoute, taps: set[str]) -> bool:
    walked = walk(
        index,
        route.exchange,
        route.routing_key,
        version=snapshot.version_tuple,
        consumed=snapshot.consumed,
    )
    return any(one.queue in taps for one in walked.outcomes)


def explain_unobserved_deaths(batch: ReplayBatch, seen: Scene) -> str:
    """Why they may die again and nobody sees it; "" where all such queues are being parked."""
    if not seen.ends:
        return (
            "Dead-lettering is not observed. The targets have no dead-letter exchange, so RabbitMQ "
            "drops rejected messages."
        )
    rows = DeadLetterQueue.objects.filter(broker=batch.broker, queue__in=seen.ends)
    confirmed = {row.queue: row for row in rows if row.is_confirmed}
    free = {queue.name for queue in find_peekable(batch.broker, seen)}
    unobserved = [
        name
        for name in seen.ends
        if name not in free and not (name in confirmed and confirmed[name].parks_automatically)
    ]
    if unobserved:
        more = len(unobserved) - NAMED
        names = ", ".join(f"“{name}”" for name in unobserved[:NAMED])
        names += f" and {more} more queues" if more > 0 else ""
        return (
            f"Delayboard does not observe dead-lettering into {names}, because it does not park "
            "these queues automatically. Start automatic parking on the page Dead letters, for "
            "queues that contain only dead letters."
        )
    watched = (row for row in confirmed.values() if row.parks_automatically)
    return next(filter(None, map(_explain_parker, watched)), "")


def find_peekable(broker: Broker, seen: Scene) -> list[Queue]:
    """The confirmed queues among the ends that nobody parks, and of which a look costs nothing
    and shows all.
    """
    rows = DeadLetterQueue.objects.filter(broker=broker, queue__in=seen.ends, is_confirmed=True)
    names = rows.filter(parks_automatically=False).values_list("queue", flat=True)
    queues = [seen.snapshot.definitions.queue(name) for name in sorted(names)]
    return [queue for queue in queues if queue is not None and _is_peekable(queue, seen.snapshot)]


def _is_peekable(queue: Queue, snapshot: Snapshot) -> bool:
    messages = snapshot.numbers.get(queue.name, QueueNumbers()).messages
    is_small = messages is not None and messages <= peek.MAXIMUM_MESSAGES
    return is_small and peek.is_free(queue, snapshot)


def _explain_parker(row: DeadLetterQueue) -> str:
    background_task = BackgroundTask.objects.filter(key=task_key("park", row.pk)).first()
    if background_task is None or background_task.is_late:
        return f"What comes into “{row.queue}” is not being parked: the worker does not run."
    if background_task.is_failing:
        return f"What comes into “{row.queue}” is not being parked: {background_task.last_error}"
    return ""


class Reached(NamedTuple):
    """A queue in which a publish ends, and how long it is on its way there."""

    queue: str
    after: timedelta


def find_paths(snapshot: Snapshot) -> Paths:
    """The paths of every queue with a dead-letter exchange, without Delayboard's taps."""
    ends = find_ends(snapshot)
    found: dict[str, list[str]] = {}
    for target, into in ends.feeds.items():
        for feed in into:
            for source in feed.queues:
                found.setdefault(source, []).append(target)
    leading = {source: tuple(dict.fromkeys(targets)) for source, targets in found.items()}
    return Paths(leading, ends)


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
    snapshot: Snapshot, paths: Paths, start: str, ends: Collection[str] = ()
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
        further = paths.leading.get(name, ())
        rest = [follow(to, passed | {name}) for to in further if to not in passed and to != name]
        left = (queue.message_ttl or ZERO) if further and name in paths.ends.delays else ZERO
        return left + max(rest, default=ZERO) + _estimate_retries(queue, snapshot.version_tuple)

    return follow(start, frozenset())


def find_dead_ends(snapshot: Snapshot, paths: Paths, starts: Collection[str]) -> list[str]:
    """The queues in which what fails in `starts` comes to lie for good.

    Dead-letter queues, and those of which only a consumer takes it, which may be the parker.
    """
    seen, waiting = set(starts), list(starts)
    while waiting:
        fresh = [to for to in paths.leading.get(waiting.pop(), ()) if to not in seen]
        seen.update(fresh)
        waiting += fresh
    found = filter(None, map(snapshot.definitions.queue, seen - set(starts)))
    return sorted(
        queue.name
        for queue in found
        if paths.ends.is_end(queue)
        or not (queue.name in paths.ends.delays or paths.leading.get(queue.name))
    )


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
