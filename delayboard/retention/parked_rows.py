"""Rules for parked messages: unresolved ones stay, others go by age and size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Sum
from django.db.models.functions import Length

from analytics.retention.rules import (
    BATCH,
    Alive,
    Holding,
    RowRule,
    Rows,
    Rule,
)
from delayboard.models import (
    BatchState,
    Body,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ParkSession,
    ReplayEdit,
    ReplayItem,
)
from delayboard.models.replay import ENDED_BATCH

# States of messages that may be deleted: somebody has done something about them.
RESOLVED = (ParkedState.DISCARDED, ParkedState.REPLAYED)
MEGABYTE = 1_000_000
SIZE_BATCH = 50
# Age of a session without messages from which on it is deleted: a younger one may just begin. One
# of a queue to which nothing comes writes its row again with its first message.
BEGINNING = timedelta(hours=1)
LONGEST_IDLE = timedelta(days=1)
_HAS_BODY = Exists(ParkedMessage.objects.filter(body=OuterRef("pk"))) | Exists(
    ReplayEdit.objects.filter(body=OuterRef("pk"))
)
# States of a batch whose items do not keep a message: a draft leaves out one that was deleted.
_AT_REST = (*ENDED_BATCH, BatchState.DRAFT, BatchState.PREPARING)
_IN_USE = Exists(
    ReplayItem.objects.filter(parked_message=OuterRef("pk")).exclude(batch__state__in=_AT_REST)
)
# Whether a message has a repeat, which is deleted first: the original has the replay id under which
# it was sent.
_REPEATED = Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk")))


@dataclass(frozen=True)
class ParkedRule(RowRule):
    """Parked messages in one state."""

    state: ParkedState

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        return _filter_deletable(self.state).filter(state_at__lt=cutoff)

    def batches(self, now: datetime) -> Iterator[list[int]]:
        """Queried again each time: a message becomes deletable after its last repeat."""
        ordered = self.expired(now).order_by("state_at", "pk").values_list("pk", flat=True)
        while keys := list(ordered[:BATCH]):
            yield keys

    def delete_batch(self, keys: list[int], now: datetime) -> int:
        return _delete_messages(keys)[0]

    def rows(self, now: datetime) -> Rows:
        return self.table.filter(state=self.state)

    def count(self, now: datetime) -> int:
        return _count_messages([self.state])


@dataclass(frozen=True)
class SizeRule(Rule):
    """All parked messages, in megabytes; its holding has no size, since measuring takes a while."""

    @property
    def limit(self) -> int | None:
        """The limit in bytes; None for no limit."""
        return settings.KEEP_PARKED_MB * MEGABYTE or None

    def is_exceeded(self, size: int | None) -> bool:
        """Nothing more can be deleted, and it is too much."""
        is_over = self.limit is not None and size is not None and size > self.limit
        return is_over and not _count_messages(RESOLVED)

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        """Delete the oldest resolved ones until all fit, or none is left.

        What each batch frees is subtracted, since measuring reads every row; whether all fit then
        is measured.
        """
        total, limit = 0, self.limit
        if limit is None:
            return 0
        BODIES.delete_expired(now, alive)
        while (over := measure_size() - limit) > 0:
            before = total
            while over > 0 and (keys := _find_oldest(SIZE_BATCH)):
                number, freed = _delete_messages(keys)
                total, over = total + number, over - freed
                alive()
            if total == before:
                break
        return total

    def holding(self, now: datetime) -> Holding:
        unresolved = [state for state in ParkedState if state not in RESOLVED]
        return Holding(self, "unresolved", _count_messages(unresolved), None)


@dataclass(frozen=True)
class BodyRule(RowRule):
    """Bodies that no message and no edit has any more."""

    def expired(self, now: datetime) -> Rows:
        return self.table.filter(~_HAS_BODY)

    def delete_batch(self, keys: list[str], now: datetime) -> int:
        return len(_delete_bodies(keys))


@dataclass(frozen=True)
class SessionRule(RowRule):
    """Sessions that have ended, or never kept a message."""

    def expired(self, now: datetime) -> Rows:
        return self.table.filter(
            ~Exists(ParkedMessage.objects.filter(session=OuterRef("pk"))),
            Q(ended_at__isnull=False, began_at__lt=now - BEGINNING)
            | Q(stored_to=0, began_at__lt=now - LONGEST_IDLE),
        )

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        """In one statement: one that keeps its first message now is waited for, and stays."""
        rows = self.expired(now)
        return rows._raw_delete(rows.db)


def measure_size() -> int:
    """Bytes of all bodies and properties; reads every row."""
    bodies = Body.objects.aggregate(sum=Sum("size"))["sum"] or 0
    properties = ParkedMessage.objects.aggregate(sum=Sum(Length("properties")))["sum"] or 0
    return bodies + properties


def _count_messages(states: Collection[ParkedState]) -> int:
    """Count messages by the counts of their groups."""
    sums = MessageGroup.objects.aggregate(**{state: Sum(state, default=0) for state in states})
    return sum(sums.values())


def _filter_deletable(state: ParkedState) -> Rows:
    return ParkedMessage.objects.filter(~_IN_USE, ~_REPEATED, state=state)


def _find_oldest(number: int) -> list[int]:
    """The oldest of all that are resolved; each state has its own order in the index."""
    found: list[tuple[datetime, int]] = []
    for state in RESOLVED:
        rows = _filter_deletable(state).order_by("state_at", "pk")
        found += rows.values_list("state_at", "pk")[:number]
    return [key for _, key in sorted(found)[:number]]


def _delete_messages(keys: list[int]) -> tuple[int, int]:
    """Delete those that are still resolved, with their counts and bodies; how many, and bytes."""
    with transaction.atomic():
        messages = _lock(keys)
        numbers = Counter((one.group_id, one.state) for one in messages)
        for (group, state), number in sorted(numbers.items()):
            MessageGroup.objects.filter(pk=group).update(**{state: F(state) - number})
        # After the groups: it changes items of replays too, which are locked last everywhere.
        ParkedMessage.objects.filter(pk__in=[one.pk for one in messages]).delete()
    freed = _delete_bodies(sorted({one.body_id for one in messages}))
    return len(messages), sum(one.bytes for one in messages) + sum(freed)


def _lock(keys: list[int]) -> list[Any]:
    """Lock those that are still resolved: somebody may restore one at this time.

    Their repeats are changed when they go, and are locked in the same order.
    """
    requested = set(keys)
    rows = ParkedMessage.objects.filter(Q(pk__in=keys) | Q(repeat_of__in=keys)).order_by("pk")
    measured = rows.select_for_update().annotate(bytes=Length("properties"))
    found = measured.values_list("pk", "state", "group_id", "body_id", "bytes", named=True)
    return [row for row in found if row.pk in requested and row.state in RESOLVED]


def _delete_bodies(keys: list[str]) -> list[int]:
    """Delete those of these bodies that no message uses, unread; the bytes of each.

    One that is being stored with a message is left for the next time. The lock prevents new uses,
    and existing uses are checked after it.
    """
    with transaction.atomic():
        rows = Body.objects.filter(pk__in=keys).order_by("pk").select_for_update(skip_locked=True)
        locked = list(rows.values_list("pk", flat=True))
        sizes = dict(Body.objects.filter(~_HAS_BODY, pk__in=locked).values_list("pk", "size"))
        unused = Body.objects.filter(pk__in=list(sizes))
        unused._raw_delete(unused.db)
    return list(sizes.values())


DISCARDED = ParkedRule(
    "Discarded parked messages",
    "KEEP_DISCARDED_DAYS",
    "Discarded messages, counted from the discard. You can restore them until Delayboard deletes "
    "them. Messages in the state parked are never deleted.",
    ParkedMessage.objects.all(),
    "state_at",
    ParkedState.DISCARDED,
)
REPLAYED = ParkedRule(
    "Replayed parked messages",
    "KEEP_REPLAYED_DAYS",
    "Replayed messages, counted from the replay. Delayboard does not delete messages of a running "
    "replay, messages in a delay without observed delivery, or messages with a parked repeat.",
    ParkedMessage.objects.all(),
    "state_at",
    ParkedState.REPLAYED,
)
SIZE = SizeRule(
    "All parked messages",
    "KEEP_PARKED_MB",
    "Above this size, Delayboard deletes discarded and replayed messages, oldest first. Messages "
    "in the state parked are never deleted.",
)
BODIES = BodyRule("", 0, "", Body.objects.all(), "")
SESSIONS = SessionRule("", 0, "", ParkSession.objects.all(), "began_at")
PARKED = (DISCARDED, REPLAYED, SIZE, BODIES, SESSIONS)
