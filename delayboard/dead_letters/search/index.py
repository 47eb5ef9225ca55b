"""The index of parked messages: written later, so that parking never waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Event

from django.db import transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Substr

from analytics.search.content import JSON_BYTES, Content, read
from delayboard.models import ParkedField, ParkedMessage, ParkedPosition, ParkedText
from delayboard.models.background_task import Beat
from topology.broker.properties.read import read_properties
from topology.database.errors import try_write
from topology.models import Broker
from topology.models.client_convention import read_conventions

# Messages of one step, which holds SQLite's one write lock for about 30 ms; after it others write.
STEP = 200
PAUSE_SECONDS = 0.02
IDLE_SECONDS = 0.5
# Longest time in seconds by which rows are seen in another order than they were numbered in.
SETTLED_SECONDS = 10.0
COUNTED = 10_000
# Messages that a search indexes itself when it comes before the worker.
NEWEST = 300


@dataclass
class Progress:
    """The position of one indexer. It went up to `reached`; up to `swept_to` a second pass found no
    message without an entry.
    """

    reached: int
    swept_to: int
    to_sweep: int
    swept_at: float


def begin() -> Progress:
    at = read_to()
    return Progress(at, at, at, time.monotonic())


def keep_indexed(stop: Event, beat: Beat) -> None:
    """Index what was parked until `stop` is set. `beat` gets `indexed`, how many so far."""
    progress, done = begin(), 0
    while not stop.is_set():
        number = keep_up(progress)
        done += number
        beat({"indexed": done})
        stop.wait(PAUSE_SECONDS if number else IDLE_SECONDS)


def keep_up(progress: Progress) -> int:
    """Index the next few messages; how many: 0 when there is nothing to do now."""
    newest = ParkedMessage.objects.aggregate(newest=Max("pk"))["newest"] or 0
    ids = _find_missing(progress.reached, newest) if newest > progress.reached else []
    progress.reached = ids[-1] if ids else max(newest, progress.reached)
    done = _index(ids)
    if not ids and time.monotonic() - progress.swept_at >= SETTLED_SECONDS:
        done += sweep(progress)
    return done


def sweep(progress: Progress) -> int:
    """Look again for messages that came to be seen behind others; how many there were."""
    done, place = 0, progress.swept_to
    while ids := _find_missing(place, progress.to_sweep):
        done, place = done + _index(ids), ids[-1]
    if progress.to_sweep > progress.swept_to:
        position, _ = ParkedPosition.objects.get_or_create(pk=1)
        if position.read_to < progress.to_sweep:
            position.read_to = progress.to_sweep
            position.save()
    progress.swept_to, progress.to_sweep = progress.to_sweep, progress.reached
    progress.swept_at = time.monotonic()
    return done


def add_newest(below: int | None) -> None:
    """Index the newest that are not yet, for a search that is about to read the index."""
    rows = _not_indexed() if below is None else _not_indexed().filter(pk__lt=below)
    ids = list(rows.order_by("-pk").values_list("pk", flat=True)[:NEWEST])
    if ids:
        contents = contents_of(ids)
        try_write("The index of parked messages", lambda: _write(contents))


def add_missing(rows: QuerySet[ParkedMessage], pulse: Callable[[], None]) -> None:
    """Index messages that no search finds yet, until none of `rows` is left; `pulse` is called
    before each step.
    """
    while ids := list(rows.order_by("pk").values_list("pk", flat=True)[:STEP]):
        pulse()
        _index(ids)


def not_searchable(broker: Broker) -> int:
    """How many messages of the broker are not indexed yet; COUNTED at most."""
    return _not_indexed().filter(broker=broker).order_by().values("pk")[:COUNTED].count()


def read_to() -> int:
    """All messages up to this id are indexed."""
    return ParkedPosition.objects.values_list("read_to", flat=True).first() or 0


def contents_of(ids: Collection[int]) -> dict[int, Content]:
    """What is indexed of these messages."""
    body = Substr("body__data", 1, JSON_BYTES + 1)
    rows = ParkedMessage.objects.filter(pk__in=ids).order_by("pk")
    brokers = set(rows.order_by().values_list("broker", flat=True).distinct())
    own = {broker: read_conventions(broker) for broker in brokers}
    columns = rows.values_list("pk", "broker", "properties", body)
    return {
        pk: read(read_properties(bytes(properties)), bytes(data or b""), own[broker])
        for pk, broker, properties, data in columns.iterator(50)
    }


def _not_indexed() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.filter(pk__gt=read_to(), searched=None)


def _find_missing(after: int, until: int) -> list[int]:
    """The first messages behind `after` that are not indexed, none behind `until`."""
    rows = ParkedMessage.objects.filter(pk__gt=after, pk__lte=until, searched=None)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:STEP])


def _index(ids: Collection[int]) -> int:
    """Read without any lock, write in one short transaction."""
    return _write(contents_of(ids)) if ids else 0


@transaction.atomic
def _write(contents: Mapping[int, Content]) -> int:
    # One at a time, where several processes write.
    ParkedPosition.objects.select_for_update().get_or_create(pk=1)
    rows = ParkedMessage.objects.filter(pk__in=contents)
    rows = rows.exclude(pk__in=ParkedText.objects.filter(pk__in=contents).values("pk"))
    rows = rows.select_for_update(no_key=True)
    columns = ("pk", "size", "deaths", "died_at", "parked_at")
    texts = [
        ParkedText(
            parked_message_id=pk,
            text=contents[pk].text,
            message_id=contents[pk].message_id,
            size=size,
            deaths=deaths,
            died_at=died_at,
            parked_at=parked_at,
        )
        for pk, size, deaths, died_at, parked_at in rows.values_list(*columns)
    ]
    ParkedText.objects.bulk_create(texts)
    ParkedField.objects.bulk_create(
        ParkedField(
            parked_message_id=text.parked_message_id,
            name=value.name,
            text=value.text,
            number=value.number,
        )
        for text in texts
        for value in contents[text.parked_message_id].fields
    )
    return len(texts)
