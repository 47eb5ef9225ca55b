"""The last step of a dry run: what no single verdict tells, since it takes all items to fill a
queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from django.db import transaction

from delayboard.dead_letters.replay.batch.items import firsts, frozen_at
from delayboard.dead_letters.replay.batch.routes import Judged
from delayboard.dead_letters.replay.check.checker import Desk, Looked
from delayboard.dead_letters.replay.check.full_queues import Coming, overflow_of
from delayboard.models import ReplayBatch, ReplayRoute, Source

CHUNK = 500
T = TypeVar("T")


class _Way(NamedTuple):
    """A route that leads into bounded queues; `source` is where its first item lay."""

    row: ReplayRoute
    looked: Looked
    size: int | None
    source: str


def finish(batch: ReplayBatch, desk: Desk, pulse: Callable[[], None] = lambda: None) -> None:
    """Tell each route what its queues cannot hold of the whole batch.

    It may be called again after items went other ways. Items of one route end in the same
    queues, so that its first one tells for all. `pulse` is called between chunks, in the
    transaction of the next.
    """
    if not desk.bounds:
        return
    ways, coming = [], dict.fromkeys(desk.bounds, Coming())
    for way in _ways(batch, desk, pulse):
        ways.append(way)
        for queue, is_first in way.looked.enters:
            if queue in coming:
                number = way.row.items_number
                coming[queue] = coming[queue].and_more(number, way.size, is_late=not is_first)
    changed = [
        (way.row, judged) for way in ways if (judged := _judged(way, desk, coming)) != _of(way.row)
    ]
    for some in _chunks(changed):
        with transaction.atomic():
            pulse()
            for row, judged in some:
                ReplayRoute.objects.filter(pk=row.pk).update(**judged._asdict())


def _ways(batch: ReplayBatch, desk: Desk, pulse: Callable[[], None]) -> Iterator[_Way]:
    used = batch.routes.filter(items_number__gt=0)
    if batch.source == Source.QUEUE:
        found = desk.look_at_all(batch.queue)
        if found is not None and _is_bounded(desk, found):
            yield from (_Way(row, found, None, batch.queue) for row in used)
        return
    at = firsts(batch)
    for keys in _chunks(sorted(at)):
        pulse()
        rows = {row.pk: row for row in used.filter(pk__in=keys)}
        items = frozen_at(batch, [at[key][0] for key in keys])
        for key in keys:
            item = items.get(at[key][0])
            if key not in rows or item is None:
                continue
            source = item.queue or ""
            looked = desk.look(item.group, source, item.edited or item.properties)
            if _is_bounded(desk, looked):
                yield _Way(rows[key], looked, at[key][1], source)


def _is_bounded(desk: Desk, looked: Looked) -> bool:
    return any(queue in desk.bounds for queue, _ in looked.enters)


def _judged(way: _Way, desk: Desk, coming: dict[str, Coming]) -> Judged:
    """What a single verdict says of a queue that is full comes behind all else that is bad."""
    judged = way.looked.judged
    for queue, _ in way.looked.enters:
        bound = desk.bounds.get(queue)
        if bound is None:
            continue
        key = judged.routing_key
        found = overflow_of(bound, coming[queue], desk.index, key, (way.source,))
        if found is None:
            continue
        is_worse = judged.is_good or _badness(found.ending) > _badness(judged.ending)
        ending = found.ending if is_worse else judged.ending
        said = f"{judged.verdict} {found.said}"
        judged = judged._replace(verdict=said, ending=ending, is_good=False)
    return judged


def _badness(ending: str) -> int:
    return {"uncertain": 0, "full": 1}.get(ending, 2)


def _of(row: ReplayRoute) -> Judged:
    return Judged(*(getattr(row, name) for name in Judged._fields))


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for place in range(0, len(rows), CHUNK):
        yield rows[place : place + CHUNK]
