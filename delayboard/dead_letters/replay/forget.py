"""Replays that ended long ago are forgotten, with their items, routes and edits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from analytics.retention.holdings import Holding
from analytics.retention.rules import Rule
from delayboard.models import LetterState, ReplayBatch, ReplayEdit, ReplayItem
from delayboard.models.replay import ENDED_BATCH

# A transaction writes for some hundredths of a second, then others may.
CHUNK = 500
REPLAYS = Rule(
    "Replays",
    "KEEP_REPLAYS_DAYS",
    365,
    "Replays so long after their end, with what became of each of their messages; not while one "
    "of these is in a delay and was not seen to arrive. The audit log still names them.",
)


def replays_held() -> Holding:
    """What there is of them."""
    rows = ReplayBatch.objects.all()
    first = rows.order_by("pk").values_list("created_at", flat=True).first()
    return Holding(REPLAYS, "row", rows.count(), first)


def forget_replays(now: datetime, alive: Callable[[], None] = lambda: None) -> int:
    """Delete what ended so long ago; how many replays. Letters stay.

    `alive` is called between transactions, and may raise to stop. Raises BadSetting.
    """
    cutoff = REPLAYS.cutoff(now)
    if cutoff is None:
        return 0
    total = 0
    while (key := _past(cutoff).order_by("pk").values_list("pk", flat=True).first()) is not None:
        _forget_items(key, alive)
        with transaction.atomic():
            ReplayBatch.objects.filter(pk=key).delete()
        total += 1
        alive()
    return total


def _past(cutoff: datetime) -> QuerySet[ReplayBatch]:
    on_its_way = ReplayItem.objects.filter(batch=OuterRef("pk"), letter__state=LetterState.HANDED)
    ended = ReplayBatch.objects.filter(state__in=ENDED_BATCH, state_at__lt=cutoff)
    return ended.filter(~Exists(on_its_way))


def _forget_items(batch: int, alive: Callable[[], None]) -> None:
    """A million of them are no single transaction."""
    rows = ReplayItem.objects.filter(batch=batch).order_by("position")
    while keys := list(rows.values_list("pk", flat=True)[:CHUNK]):
        with transaction.atomic():
            ReplayEdit.objects.filter(item__in=keys).delete()
            ReplayItem.objects.filter(pk__in=keys).delete()
        alive()
