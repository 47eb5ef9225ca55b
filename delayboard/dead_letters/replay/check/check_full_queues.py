"""The last step of a dry run: whether all items together fill a queue, which no single verdict
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from django.db import transaction

from delayboard.dead_letters.replay.batch.items import find_first_items, read_items_at
from delayboard.dead_letters.replay.batch.routes import CheckedTarget
from delayboard.dead_letters.replay.check.full_queues import Incoming, find_overflow
from delayboard.dead_letters.replay.check.message_checker import CheckedMessage, MessageChecker
from delayboard.models import ReplayBatch, ReplayRoute, Source

CHUNK = 500
T = TypeVar("T")


class _BoundedRoute(NamedTuple):
    """A route that leads into bounded queues; `source` is the queue of its first item."""

    row: ReplayRoute
    looked: CheckedMessage
    size: int | None
    source: str


def check_full_queues(
    batch: ReplayBatch, checker: MessageChecker, pulse: Callable[[], None] = lambda: None
) -> None:
    """Write to each route how many messages of the whole batch its queues cannot hold.

    It may be called again after items changed their routes. Items of one route end in the same
    queues, so its first item represents all. `pulse` is called between chunks, in the transaction
    of the next.
    """
    if not checker.bounds:
        return
    ways, coming = [], dict.fromkeys(checker.bounds, Incoming())
    for way in _find_bounded_routes(batch, checker, pulse):
        ways.append(way)
        for queue, is_first in way.looked.enters:
            if queue in coming:
                number = way.row.items_number
                coming[queue] = coming[queue].add(number, way.size, is_late=not is_first)
    changed = [
        (way.row, checked)
        for way in ways
        if (checked := _check_route(way, checker, coming)) != _read_route(way.row)
    ]
    for some in _split_chunks(changed):
        with transaction.atomic():
            pulse()
            for row, checked in some:
                ReplayRoute.objects.filter(pk=row.pk).update(**checked._asdict())


def _find_bounded_routes(
    batch: ReplayBatch, checker: MessageChecker, pulse: Callable[[], None]
) -> Iterator[_BoundedRoute]:
    used = batch.routes.filter(items_number__gt=0)
    if batch.source == Source.QUEUE:
        found = checker.check_queue_entered(batch.queue)
        if found is not None and _is_bounded(checker, found):
            yield from (_BoundedRoute(row, found, None, batch.queue) for row in used)
        return
    at = find_first_items(batch)
    for keys in _split_chunks(sorted(at)):
        pulse()
        rows = {row.pk: row for row in used.filter(pk__in=keys)}
        items = read_items_at(batch, [at[key][0] for key in keys])
        for key in keys:
            item = items.get(at[key][0])
            if key not in rows or item is None:
                continue
            source = item.queue or ""
            looked = checker.check_entered(item.group, source, item.edited or item.properties)
            if _is_bounded(checker, looked):
                yield _BoundedRoute(rows[key], looked, at[key][1], source)


def _is_bounded(checker: MessageChecker, looked: CheckedMessage) -> bool:
    return any(queue in checker.bounds for queue, _ in looked.enters)


def _check_route(
    way: _BoundedRoute, checker: MessageChecker, coming: dict[str, Incoming]
) -> CheckedTarget:
    """Add to a verdict, behind its other sentences, that a queue is full."""
    checked = way.looked.checked
    for queue, _ in way.looked.enters:
        bound = checker.bounds.get(queue)
        if bound is None:
            continue
        key = checked.routing_key
        found = find_overflow(bound, coming[queue], checker.index, key, (way.source,))
        if found is None:
            continue
        is_worse = checked.is_good or _rank_ending(found.ending) > _rank_ending(checked.ending)
        ending = found.ending if is_worse else checked.ending
        sentence = f"{checked.verdict} {found.sentence}"
        checked = checked._replace(verdict=sentence, ending=ending, is_good=False)
    return checked


def _rank_ending(ending: str) -> int:
    return {"uncertain": 0, "full": 1}.get(ending, 2)


def _read_route(row: ReplayRoute) -> CheckedTarget:
    return CheckedTarget(*(getattr(row, name) for name in CheckedTarget._fields))


def _split_chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for place in range(0, len(rows), CHUNK):
        yield rows[place : place + CHUNK]
