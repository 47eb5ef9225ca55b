"""How long letters are kept: unresolved ones for good, discarded and replayed ones for a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, F, Min, OuterRef, Q, Sum
from django.db.models.functions import Length

from analytics.retention.rules import BadSetting, Rule
from delayboard.models import (
    BatchState,
    Body,
    DeadLetter,
    LetterGroup,
    LetterState,
    ParkSession,
    ReplayEdit,
    ReplayItem,
)
from delayboard.models.replay import ENDED_BATCH

DISCARDED = Rule(
    "Discarded letters",
    "KEEP_DISCARDED_DAYS",
    30,
    "Parked letters so long after they were discarded; until then that can be undone. "
    "Those that nobody discarded or replayed stay for good.",
)
REPLAYED = Rule(
    "Replayed letters",
    "KEEP_REPLAYED_DAYS",
    30,
    "Parked letters so long after their replay; never while a replay that runs has them, while "
    "they were handed to a delay and not seen to arrive, or while a possible repeat is parked.",
)
# What somebody has done something about: only these are ever deleted.
RULES = {LetterState.DISCARDED: DISCARDED, LetterState.REPLAYED: REPLAYED}
SIZE = "KEEP_LETTERS_MB"
MEGABYTE = 1_000_000
CHUNK = 500
# A session without letters may be one that begins just now, or one of a queue to which nothing
# comes; that one writes its row anew with its first letter.
BEGINNING = timedelta(hours=1)
LONGEST_IDLE = timedelta(days=1)
HAVE_IT = Exists(DeadLetter.objects.filter(body=OuterRef("pk"))) | Exists(
    ReplayEdit.objects.filter(body=OuterRef("pk"))
)
# A draft whose letter was deleted leaves that one out.
_AT_REST = (*ENDED_BATCH, BatchState.DRAFT, BatchState.PREPARING)
# A repeat goes first: the message that it may repeat says under which replay id it was sent.
_REPEATED = Exists(DeadLetter.objects.filter(repeat_of=OuterRef("pk")))
IN_USE = Exists(ReplayItem.objects.filter(letter=OuterRef("pk")).exclude(batch__state__in=_AT_REST))

Alive = Callable[[], None]
# The ids of the next so many that may go.
Next = Callable[[int], list[int]]


@dataclass(frozen=True)
class Holding:
    """What the journal holds; `size` in bytes of bodies and properties, None when not measured,
    and `limit` of that or None. `numbers` are by state, and `oldest` of those that have a rule."""

    numbers: Mapping[str, int]
    oldest: Mapping[str, datetime | None]
    size: int | None
    limit: int | None

    @property
    def unresolved(self) -> int:
        """Those that are never deleted."""
        return sum(number for state, number in self.numbers.items() if state not in RULES)

    @property
    def is_over(self) -> bool:
        """Nothing more can be deleted, and it is too much."""
        if self.limit is None or self.size is None:
            return False
        return self.size > self.limit and not any(self.numbers[state] for state in RULES)


class _Step(NamedTuple):
    """What one transaction deleted; `freed` in bytes."""

    letters: int
    freed: int


def limit_bytes() -> int | None:
    """None for no limit. Raises BadSetting."""
    text = os.environ.get(SIZE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise BadSetting(
            f"{SIZE} is “{text[:40]}”. It takes a number of megabytes from 1 on; without it "
            "there is no limit."
        )
    return int(text) * MEGABYTE


def held(measured: int | None) -> Holding:
    """By the groups' counts; `measured` is the size, which takes a while. Raises BadSetting."""
    numbers = LetterGroup.objects.aggregate(
        **{state: Sum(state, default=0) for state in LetterState.values}
    )
    oldest = {
        str(state): DeadLetter.objects.filter(state=state).aggregate(at=Min("state_at"))["at"]
        for state in RULES
    }
    return Holding(numbers, oldest, measured, limit_bytes())


def clean_letters(now: datetime, alive: Alive = lambda: None) -> dict[str, int]:
    """Delete resolved letters that are past, and what nothing refers to; how many, by setting.

    `alive` is called between batches, and may raise to stop. Raises BadSetting.
    """
    limit = limit_bytes()
    cutoffs = {state: rule.cutoff(now) for state, rule in RULES.items()}
    old = {
        RULES[state].setting: sum(step.letters for step in _deleted(_past(state, cutoff), alive))
        for state, cutoff in cutoffs.items()
        if cutoff is not None
    }
    sized = 0 if limit is None else _shrunk(limit, alive)
    _forget_bodies(alive)
    sessions = ParkSession.objects.filter(
        ~Exists(DeadLetter.objects.filter(session=OuterRef("pk"))),
        Q(ended_at__isnull=False, began_at__lt=now - BEGINNING)
        | Q(kept_to=0, began_at__lt=now - LONGEST_IDLE),
    )
    # In one statement: one that keeps its first letter at this moment is waited for, and stays.
    sessions._raw_delete(sessions.db)
    return {**{rule.setting: 0 for rule in RULES.values()}, **old, SIZE: sized}


def _past(state: LetterState, cutoff: datetime) -> Next:
    rows = DeadLetter.objects.filter(~IN_USE, ~_REPEATED, state=state, state_at__lt=cutoff)
    return lambda number: list(
        rows.order_by("state_at", "pk").values_list("pk", flat=True)[:number]
    )


def _oldest(number: int) -> list[int]:
    """Of all that are resolved; each state has its own order in the index."""
    found: list[tuple[datetime, int]] = []
    for state in RULES:
        rows = DeadLetter.objects.filter(~IN_USE, ~_REPEATED, state=state).order_by(
            "state_at", "pk"
        )
        found += rows.values_list("state_at", "pk")[:number]
    return [key for _, key in sorted(found)[:number]]


def _shrunk(limit: int, alive: Alive) -> int:
    """Delete the oldest resolved ones until all fit, or none is left; how many.

    What each step frees is subtracted, since measuring reads every row; whether all fit then is
    measured.
    """
    total = 0
    _forget_bodies(alive)
    while (over := size() - limit) > 0:
        before = total
        for step in _deleted(_oldest, alive, CHUNK // 10):
            total += step.letters
            over -= step.freed
            if over <= 0:
                break
        if total == before:
            break
    return total


def size() -> int:
    """Bytes of all bodies and properties; reads every row."""
    bodies = Body.objects.aggregate(sum=Sum("size"))["sum"] or 0
    stated = DeadLetter.objects.aggregate(sum=Sum(Length("properties")))["sum"] or 0
    return bodies + stated


def _deleted(following: Next, alive: Alive, chunk: int = CHUNK) -> Iterator[_Step]:
    """Delete in small transactions, each with its counts, and then the bodies of each."""
    while keys := following(chunk):
        with transaction.atomic():
            letters = _locked(keys)
            gone = Counter((letter.group_id, letter.state) for letter in letters)
            for (group, state), number in sorted(gone.items()):
                LetterGroup.objects.filter(pk=group).update(**{state: F(state) - number})
            # After the groups: it changes items of replays too, which are locked last everywhere.
            DeadLetter.objects.filter(pk__in=[letter.pk for letter in letters]).delete()
        freed = sum(letter.bytes for letter in letters)
        freed += _forget(sorted({letter.body_id for letter in letters}))
        alive()
        yield _Step(len(letters), freed)


def _locked(keys: list[int]) -> list[Any]:
    """Those of them that are still resolved: somebody may restore one at this moment.

    Their repeats are changed when they go, and are locked in the same order.
    """
    wanted = set(keys)
    rows = DeadLetter.objects.filter(Q(pk__in=keys) | Q(repeat_of__in=keys)).order_by("pk")
    stated = rows.select_for_update().annotate(bytes=Length("properties"))
    found = stated.values_list("pk", "state", "group_id", "body_id", "bytes", named=True)
    return [row for row in found if row.pk in wanted and row.state in RULES]


def _forget_bodies(alive: Alive) -> None:
    """Delete bodies that no letter and no edit has any more."""
    last = ""
    while keys := list(
        Body.objects.filter(~HAVE_IT, pk__gt=last)
        .order_by("pk")
        .values_list("pk", flat=True)[:CHUNK]
    ):
        _forget(keys)
        last = keys[-1]
        alive()


def _forget(keys: Sequence[str]) -> int:
    """Delete those of these bodies that nothing has, unread; the bytes of them.

    One that somebody is writing a letter of is left for the next time. From the lock on nobody
    can, and whether one has it already is asked after that.
    """
    with transaction.atomic():
        rows = Body.objects.filter(pk__in=keys).order_by("pk").select_for_update(skip_locked=True)
        locked = list(rows.values_list("pk", flat=True))
        orphans = Body.objects.filter(~HAVE_IT, pk__in=locked)
        sizes = dict(orphans.values_list("pk", "size"))
        gone = Body.objects.filter(pk__in=list(sizes))
        gone._raw_delete(gone.db)
    return sum(sizes.values())
