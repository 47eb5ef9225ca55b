"""The index of parked letters: written some time after them, so that parking never waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Event

from django.db import transaction

from delayboard.dead_letters.search.content import Content
from delayboard.dead_letters.search.holding import contents_of, read_to
from delayboard.models import DeadLetter, LetterField, LetterPosition, LetterText
from topology.models import Broker

Beat = Callable[[Mapping[str, object]], None]
# A step holds SQLite's one write lock, for about 30 ms; after it others write.
STEP = 200
PAUSE_SECONDS = 0.02
IDLE_SECONDS = 0.5
# Rows are seen in another order than they were numbered in, by no more than that.
SETTLED_SECONDS = 10.0
PASSED = 2000
COUNTED = 10_000


@dataclass
class Progress:
    """How far one indexer is. Up to `reached` it went; up to `swept_to` nothing was left out when
    it looked again, some time after it had been there first.
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
    """Index the next few letters; how many: 0 when there is nothing to do now."""
    ids, progress.reached = _missing(progress.reached)
    done = _index(ids)
    if not ids and time.monotonic() - progress.swept_at >= SETTLED_SECONDS:
        done += sweep(progress)
    return done


def sweep(progress: Progress) -> int:
    """Look again for letters that came to be seen behind others; how many there were."""
    done, place = 0, progress.swept_to
    while place < progress.to_sweep:
        ids, place = _missing(place, progress.to_sweep)
        done += _index(ids)
    if progress.to_sweep > progress.swept_to:
        position, _ = LetterPosition.objects.get_or_create(pk=1)
        if position.read_to < progress.to_sweep:
            position.read_to = progress.to_sweep
            position.save()
    progress.swept_to, progress.to_sweep = progress.to_sweep, progress.reached
    progress.swept_at = time.monotonic()
    return done


def unindexed(before: int | None, number: int) -> list[int]:
    """The newest letters that have no text yet, at most so many."""
    found: list[int] = []
    least, place = read_to(), before
    while len(found) < number:
        rows = DeadLetter.objects.filter(pk__gt=least)
        rows = rows if place is None else rows.filter(pk__lt=place)
        ids = list(rows.order_by("-pk").values_list("pk", flat=True)[:number])
        if not ids:
            break
        known = _indexed(ids)
        found += [pk for pk in ids if pk not in known]
        place = ids[-1]
        if len(known) == len(ids):
            # What stands below was there before these.
            break
    return found[:number]


def not_searchable(broker: Broker) -> int:
    """How many letters of the broker have no text yet; COUNTED at most."""
    rows = DeadLetter.objects.filter(broker=broker, pk__gt=read_to(), searched=None).order_by()
    return rows.values("pk")[:COUNTED].count()


def _missing(after: int, until: int | None = None) -> tuple[list[int], int]:
    """The first letters without a text behind this place, and the place behind these."""
    place = after
    while True:
        rows = DeadLetter.objects.filter(pk__gt=place).order_by("pk")
        rows = rows if until is None else rows.filter(pk__lte=until)
        ids = list(rows.values_list("pk", flat=True)[:PASSED])
        if not ids:
            return [], place if until is None else max(place, until)
        known = _indexed(ids)
        missing = [pk for pk in ids if pk not in known][:STEP]
        if missing:
            return missing, missing[-1]
        place = ids[-1]


def _indexed(ids: Collection[int]) -> set[int]:
    texts = LetterText.objects.filter(pk__gte=min(ids), pk__lte=max(ids))
    return set(texts.values_list("pk", flat=True))


def _index(ids: Collection[int]) -> int:
    """Read without any lock, write in one short transaction."""
    if not ids:
        return 0
    contents = contents_of(ids)
    with transaction.atomic():
        # One at a time, where two workers run.
        LetterPosition.objects.select_for_update().get_or_create(pk=1)
        rows = DeadLetter.objects.filter(pk__in=contents).select_for_update(no_key=True)
        columns = ("pk", "size", "deaths", "died_at", "parked_at")
        known = _indexed(ids)
        letters = [row for row in rows.values_list(*columns) if row[0] not in known]
        LetterText.objects.bulk_create(
            LetterText(
                letter_id=pk,
                text=contents[pk].text,
                message_id=contents[pk].message_id,
                size=size,
                deaths=deaths,
                died_at=died_at,
                parked_at=parked_at,
            )
            for pk, size, deaths, died_at, parked_at in letters
        )
        LetterField.objects.bulk_create(
            field for row in letters for field in _fields(row[0], contents[row[0]])
        )
    return len(letters)


def _fields(letter: int, content: Content) -> list[LetterField]:
    return [
        LetterField(letter_id=letter, name=held.name, text=held.text, number=held.number)
        for held in content.fields
    ]
