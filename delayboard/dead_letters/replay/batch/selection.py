"""The messages that a batch means, in the order of their ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Min, QuerySet

from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.claims import FREE
from delayboard.dead_letters.search import Search, search_by
from delayboard.models import Order, ParkedMessage, ParkedState, ReplayBatch
from topology.models import Broker

# Ids searched in one statement: a slow search must not outlast the lease.
SLICE = 20_000

Pulse = Callable[[], None]


class SelectedMessage(NamedTuple):
    """The frozen and checked parts of a message; `properties` None when it was deleted.

    `repeat_of` is the earlier message that it may repeat.
    """

    pk: int
    group: int | None
    queue: str
    properties: bytes | None
    message_id: str
    size: int
    repeat_of: int | None

    @property
    def parked_message(self) -> int:
        return self.pk

    @property
    def is_repeat(self) -> bool:
        return self.repeat_of is not None


class Selection:
    """Those of one batch. `is_limited` where its limit counts; `groups` is how many they are of."""

    def __init__(
        self,
        rows: QuerySet[ParkedMessage],
        batch: ReplayBatch,
        *,
        is_limited: bool,
        groups: int | None = None,
    ) -> None:
        self._rows = rows
        self._newest = batch.newest
        self._ids = (
            None
            if batch.parked_messages is None
            else sorted({int(key) for key in batch.parked_messages})
        )
        self._is_slow = is_limited and groups != 1
        self._broker = batch.broker
        self.limit = batch.limit if is_limited else None
        self._from_the_end = batch.order == Order.NEWEST

    def count_room(self, number: int) -> int:
        """How many more there may be beside `number`."""
        return SLICE if self.limit is None else max(0, self.limit - number)

    def find_floor(self, pulse: Pulse) -> int:
        """The id below the newest ones if only so many of these are meant, else 0."""
        if self.limit is None or not self._from_the_end:
            return 0
        remaining = self.limit
        top = self._newest or 0
        lowest = self._find_lowest()
        while top >= lowest:
            pulse()
            rows = self._rows.filter(pk__gt=top - SLICE, pk__lte=top).order_by("-pk")
            keys = list(rows.values_list("pk", flat=True)[:remaining])
            remaining -= len(keys)
            if not remaining:
                return keys[-1] - 1
            top -= SLICE
        return 0

    def read_next(
        self, after: int, number: int, pulse: Pulse | None = None
    ) -> list[SelectedMessage]:
        """The next ones after the id `after`, at most `number`; none at the end.

        With a `pulse` a search proceeds in slices, and calls it before each.
        """
        if self._ids is not None:
            return self._read_next_of_ids(after, number)
        rows = self._rows if self._newest is None else self._rows.filter(pk__lte=self._newest)
        if pulse is None or not self._is_slow:
            return _read_rows(rows.filter(pk__gt=after), number)
        found: list[SelectedMessage] = []
        begin, top = max(after + 1, self._find_lowest()), self._newest or 0
        while begin <= top and not found:
            pulse()
            found = _read_rows(rows.filter(pk__gte=begin, pk__lt=begin + SLICE), number)
            begin += SLICE
        return found

    def read_newest(self, number: int) -> list[SelectedMessage]:
        """The newest ones, at most `number`."""
        rows = self._rows if self._newest is None else self._rows.filter(pk__lte=self._newest)
        keys = list(rows.order_by("-pk").values_list("pk", flat=True)[:number])
        return _read_rows(ParkedMessage.objects.filter(pk__in=keys), number)

    def _read_next_of_ids(self, after: int, number: int) -> list[SelectedMessage]:
        assert self._ids is not None
        place = bisect_right(self._ids, after)
        while place < len(self._ids):
            some = self._ids[place : place + number]
            if found := _read_rows(self._rows.filter(pk__in=some), number):
                return found
            place += number
        return []

    def _find_lowest(self) -> int:
        rows = ParkedMessage.objects.filter(broker=self._broker)
        return rows.aggregate(lowest=Min("pk"))["lowest"] or 0


def find_selection(batch: ReplayBatch) -> Selection:
    """Raises BatchError, QueryError where they may no longer be chosen so."""
    free = ParkedMessage.objects.filter(broker=batch.broker)
    parked = free.filter(state=ParkedState.PARKED)
    if batch.parked_messages is not None:
        return Selection(free.filter(state__in=FREE), batch, is_limited=False)
    if batch.parking is not None:
        return Selection(parked.filter(session__parking=batch.parking), batch, is_limited=False)
    if batch.group is not None:
        groups = batch.group.member_ids
        return Selection(
            parked.filter(group__in=groups), batch, is_limited=True, groups=len(groups)
        )
    if not batch.query:
        raise BatchError(
            "The group of these parked messages was deleted. Select the messages again."
        )
    found = _repeat_search(batch).messages().filter(state=ParkedState.PARKED)
    return Selection(found, batch, is_limited=True)


def find_unindexed(batch: ReplayBatch) -> QuerySet[ParkedMessage]:
    """Messages that it may mean, and that no search finds yet. Raises BatchError, QueryError."""
    if not batch.query:
        return ParkedMessage.objects.none()
    rows = _repeat_search(batch).not_indexed().filter(state=ParkedState.PARKED)
    return rows if batch.newest is None else rows.filter(pk__lte=batch.newest)


def _repeat_search(batch: ReplayBatch) -> Search:
    return search_parked(batch.created_by, batch.broker, batch.query, batch.created_at)


def search_parked(user: Any, broker: Broker, text: str, now: datetime | None = None) -> Search:
    """A search that this person may do, for parked messages; None is whoever has a shell.

    Raises BatchError, QueryError.
    """
    search = search_by(user, broker, text, now)
    if search.state not in (ParkedState.PARKED, "any"):
        raise BatchError(
            f"The search asks for the state “{search.state}”, and only parked messages can "
            "be replayed: search without a state, or select single messages."
        )
    return search


def _read_rows(rows: QuerySet[ParkedMessage], number: int) -> list[SelectedMessage]:
    found = rows.order_by("pk").values_list(*_COLUMNS)[:number]
    return [SelectedMessage(*row) for row in found]


_COLUMNS: Sequence[str] = (
    *("pk", "group_id", "queue", "properties", "message_id", "size"),
    "repeat_of_id",
)
