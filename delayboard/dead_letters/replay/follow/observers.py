"""Who would see the messages of a replay arrive, and who would see them die again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from analytics.models import Firehose
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.candidates import find_obstacle
from delayboard.dead_letters.queues.confirmed import destinations
from delayboard.dead_letters.queues.feeds import Feeds, feeds
from delayboard.dead_letters.replay.follow.retry_rounds import (
    Paths,
    Reached,
    estimate_longest,
    find_dead_ends,
    find_paths,
    find_reached,
)
from delayboard.models import BackgroundTask, DeadLetterQueue, ReplayBatch, ReplayRoute
from delayboard.models.background_task import parker_key
from topology.definitions import Queue, is_tap
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError
from topology.patterns.table import find_retry_kinds
from topology.routing.walk import Index, walk
from topology.snapshot import QueueNumbers, Snapshot

# Of more targets, and of more of its messages' queues, only the first are looked at.
MOST_ROUTES = 200
MOST_ITEMS = 1000
NAMED = 3
# Nobody waits longer for the first ones.
LONGEST_ROUND = timedelta(days=30)
ZERO = timedelta(0)


@dataclass(frozen=True)
class Scene:
    """A batch's targets in one snapshot: where its messages end, and their dead-letter queues.

    `fed` lists the queues that dead-letter into each queue. `ends` are the names of existing
    queues, including those that the messages were parked from.
    """

    snapshot: Snapshot
    routes: Sequence[ReplayRoute]
    starts: Sequence[Reached]
    fed: Feeds
    leading: Paths
    ends: Sequence[str]


def make_scene(batch: ReplayBatch, snapshot: Snapshot) -> Scene:
    # In the order of the index routes_by_number, and no further, or all would be sorted.
    routes = list(batch.routes.order_by("-items_number")[:MOST_ROUTES])
    fed = feeds(snapshot)
    leading = find_paths(snapshot, fed)
    starts = find_reached(snapshot, [(route.exchange, route.routing_key) for route in routes])
    found = set(find_dead_ends(leading, {one.queue for one in starts})) | _find_source_queues(batch)
    rows = DeadLetterQueue.objects.filter(broker=batch.broker)
    confirmed = dict(rows.values_list("queue", "is_confirmed"))
    ends = [
        name
        for name in sorted(found)
        if confirmed.get(name, True) and not is_tap(name) and snapshot.definitions.queue(name)
    ]
    return Scene(snapshot, routes, starts, fed, leading, ends)


def _find_source_queues(batch: ReplayBatch) -> set[str]:
    """Queues with its dead letters, whatever their structure shows."""
    items = batch.items.filter(position__lte=MOST_ITEMS, parked_message__isnull=False).order_by()
    return set(items.values_list("parked_message__queue", flat=True))


def estimate_round(batch: ReplayBatch, snapshot: Snapshot) -> timedelta:
    """How long a message may be on its way to its target, and from a failure there to its death."""
    return estimate_round_in(batch, make_scene(batch, snapshot))


def estimate_round_in(batch: ReplayBatch, seen: Scene) -> timedelta:
    delay = max((timedelta(milliseconds=route.after_ms) for route in seen.routes), default=ZERO)
    known = _read_topology_rounds(batch.broker)
    rounds = [
        max(one.after, delay)
        + max(
            estimate_longest(seen.snapshot, seen.leading, one.queue, seen.ends),
            known.get(one.queue, ZERO),
        )
        for one in seen.starts
    ]
    return min(max(rounds, default=delay), LONGEST_ROUND)


def _read_topology_rounds(broker: Broker) -> dict[str, timedelta]:
    """By work queue: how long its topology lets a failed message wait, at most."""
    found: dict[str, timedelta] = {}
    rows = Topology.objects.filter(broker=broker, state=State.APPLIED)
    for row in rows.filter(kind__in=find_retry_kinds()):
        try:
            params = row.parsed
        except (ParamsError, KeyError):
            continue
        waits = row.pattern.longest_retry(params)
        for queue in row.pattern.targets(params):
            found[queue] = max(found.get(queue, ZERO), waits)
    return found


def explain_unseen_arrivals(batch: ReplayBatch, seen: Scene) -> str:
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
    way = walk(
        index,
        route.exchange,
        route.routing_key,
        version=snapshot.version_tuple,
        consumed=snapshot.consumed,
    )
    return any(one.queue in taps for one in way.outcomes)


def explain_unseen_deaths(batch: ReplayBatch, seen: Scene) -> str:
    """Why they may die again and nobody sees it; "" where all such queues are being parked."""
    if not seen.ends:
        return (
            "Dead-lettering is not observed. The targets have no dead-letter exchange, so RabbitMQ "
            "drops rejected messages."
        )
    rows = DeadLetterQueue.objects.filter(broker=batch.broker, queue__in=seen.ends)
    confirmed = {row.queue: row for row in rows if row.is_confirmed}
    free = {queue.name for queue in find_peekable(batch.broker, seen)}
    unseen = [
        name
        for name in seen.ends
        if name not in free and not (name in confirmed and confirmed[name].parks_automatically)
    ]
    if unseen:
        return _advise_watch(batch.broker, seen, unseen, confirmed)
    watched = (row for row in confirmed.values() if row.parks_automatically)
    return next(filter(None, map(_explain_parker, watched)), "")


def _advise_watch(
    broker: Broker, seen: Scene, unseen: Sequence[str], confirmed: Collection[str]
) -> str:
    """What to do about queues that nobody watches: only dead-letter queues are to be watched."""
    obstacles = _find_obstacles(broker, seen, unseen, confirmed)
    proposed = [name for name in unseen if not obstacles[name]]
    sentences = []
    if proposed:
        it = "it" if len(proposed) == 1 else "them"
        mark = "" if all(name in confirmed for name in proposed) else f"mark {it} and "
        sentences.append(
            f"Deaths into {_list_queues(proposed)} are not observed: "
            f"on the page Dead letters, {mark}select “Start automatic parking”."
        )
    if others := [f"“{name}” ({why})" for name, why in obstacles.items() if why]:
        sentences.append(
            f"Deaths into {_join_names(others)} are not observed: Delayboard parks only "
            "dead-letter queues."
        )
    return " ".join(sentences)


def _find_obstacles(
    broker: Broker, seen: Scene, names: Sequence[str], confirmed: Collection[str]
) -> dict[str, str]:
    """Why each of these must not be watched; "" for a dead-letter queue.

    A user may confirm a queue that no structure shows, but a queue with consumers is theirs.
    """
    in_topologies = destinations(broker, seen.snapshot)
    found = {}
    for name in names:
        queue = seen.snapshot.definitions.queue(name)
        numbers = seen.snapshot.numbers.get(name, QueueNumbers())
        assert queue is not None, "an end is a queue of the snapshot"
        is_known = name in confirmed and not numbers.consumers
        found[name] = (
            ""
            if is_known
            else find_obstacle(
                queue, numbers, seen.fed.get(name, ()), in_topology=name in in_topologies
            )
        )
    return found


def _list_queues(names: Sequence[str]) -> str:
    return _join_names([f"“{name}”" for name in names])


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more queues" if more > 0 else "")


def find_peekable(broker: Broker, seen: Scene) -> list[Queue]:
    """The confirmed queues among the ends that nobody parks, and of which a look costs nothing
    and shows all.
    """
    rows = DeadLetterQueue.objects.filter(broker=broker, queue__in=seen.ends, is_confirmed=True)
    names = rows.filter(parks_automatically=False).values_list("queue", flat=True)
    queues = [seen.snapshot.definitions.queue(name) for name in sorted(names)]
    return [queue for queue in queues if queue is not None and _is_peekable(queue, seen.snapshot)]


def _is_peekable(queue: Queue, snapshot: Snapshot) -> bool:
    numbers = snapshot.numbers.get(queue.name, QueueNumbers())
    allowed = peek.permission(queue, snapshot)
    is_small = numbers.messages is not None and numbers.messages <= peek.MAXIMUM_MESSAGES
    return allowed.allowed and allowed.budget is None and is_small and not numbers.consumers


def _explain_parker(row: DeadLetterQueue) -> str:
    background_task = BackgroundTask.objects.filter(key=parker_key(row.pk)).first()
    if background_task is None or background_task.is_late:
        return f"What comes into “{row.queue}” is not being parked: the worker does not run."
    if background_task.is_failing:
        return f"What comes into “{row.queue}” is not being parked: {background_task.last_error}"
    return ""
