"""The messages that a batch selects, by their ids, and its items and routes as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import F, Min, QuerySet

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.claims import FREE
from delayboard.dead_letters.search import Search, search_by
from delayboard.models import (
    ItemState,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
)
from topology.database.select_keys import match_keys
from topology.models import Broker

# Ids searched in one statement: a slow search must not outlast the lease.
SLICE = 20_000

Pulse = Callable[[], None]
_MESSAGE_COLUMNS = ("pk", "group_id", "queue", "properties", "message_id", "size", "repeat_of_id")
# Most routes that are remembered; beyond, equal ones may be several rows.
MOST_KNOWN = 20_000
_ITEM_COLUMNS = (
    "pk",
    "parked_message_id",
    "position",
    "parked_message__group_id",
    "parked_message__queue",
    "parked_message__properties",
    "edit__properties",
    "is_repeat",
    "state",
)


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


@dataclass(frozen=True)
class Selection:
    """The selection of one batch. `limit` is its limit where that counts. With `is_slow` a read is
    a search among all messages, in slices of their ids.
    """

    batch: ReplayBatch
    rows: QuerySet[ParkedMessage]
    limit: int | None = None
    is_slow: bool = False

    def count_room(self, number: int) -> int:
        """How many more there may be beside `number`."""
        return SLICE if self.limit is None else max(0, self.limit - number)

    def find_floor(self, pulse: Pulse | None = None) -> int:
        """The id below the newest ones if only so many of these are meant, else 0."""
        if self.limit is None or self.batch.order != Order.NEWEST:
            return 0
        ordered = self.rows.order_by("-pk").values_list("pk", flat=True)
        if pulse is None or not self.is_slow:
            return next(iter(ordered[self.limit - 1 : self.limit]), 1) - 1
        remaining, top, lowest = self.limit, self.batch.newest or 0, self._find_lowest()
        while top >= lowest:
            pulse()
            keys = list(ordered.filter(pk__gt=top - SLICE, pk__lte=top)[:remaining])
            remaining -= len(keys)
            if not remaining:
                return keys[-1] - 1
            top -= SLICE
        return 0

    def read_next(
        self, after: int, number: int, pulse: Pulse | None = None
    ) -> list[SelectedMessage]:
        """The next ones after the id `after`, at most `number`; none at the end.

        A slow search calls the `pulse`, if there is one, before each slice.
        """
        rows = self.rows.order_by("pk").values_list(*_MESSAGE_COLUMNS)
        if pulse is None or not self.is_slow:
            return [SelectedMessage(*row) for row in rows.filter(pk__gt=after)[:number]]
        found: list[SelectedMessage] = []
        begin, top = max(after + 1, self._find_lowest()), self.batch.newest or 0
        while begin <= top and not found:
            pulse()
            some = rows.filter(pk__gte=begin, pk__lt=begin + SLICE)[:number]
            found = [SelectedMessage(*row) for row in some]
            begin += SLICE
        return found

    def _find_lowest(self) -> int:
        rows = ParkedMessage.objects.filter(broker=self.batch.broker)
        return rows.aggregate(lowest=Min("pk"))["lowest"] or 0


def find_selection(batch: ReplayBatch) -> Selection:
    """Raises BatchError, QueryError where they may no longer be chosen so."""
    free = ParkedMessage.objects.filter(broker=batch.broker)
    if batch.parked_messages is not None:
        chosen = match_keys([int(key) for key in batch.parked_messages])
        return Selection(batch, free.filter(chosen, state__in=FREE))
    parked = free.filter(state=ParkedState.PARKED)
    if batch.parking is not None:
        return Selection(batch, parked.filter(session__parking=batch.parking))
    if batch.group is not None:
        groups = batch.group.member_ids
        rows, is_slow = parked.filter(group__in=groups), len(groups) > 1
    elif batch.query:
        rows = _repeat_search(batch).messages().filter(state=ParkedState.PARKED)
        is_slow = True
    else:
        raise BatchError(
            "The group of these parked messages was deleted. Select the messages again."
        )
    if batch.newest is not None:
        rows = rows.filter(pk__lte=batch.newest)
    return Selection(batch, rows, batch.limit, is_slow)


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


class FrozenItem(NamedTuple):
    """An item of a draft with what it is checked by.

    `original` and `edited` are properties, None where there are none.
    """

    pk: int
    parked_message: int | None
    position: int
    group: int | None
    queue: str | None
    original: bytes | None
    edited: bytes | None
    is_repeat: bool
    state: str

    @property
    def properties(self) -> bytes | None:
        """The properties that are sent."""
        return self.edited or self.original

    @property
    def is_excluded(self) -> bool:
        return self.state == ItemState.EXCLUDED


def insert_items(
    batch: ReplayBatch,
    rows: Sequence[SelectedMessage],
    checked: Sequence[CheckedTarget | None],
    routes: Routes,
) -> None:
    """Add items behind the `selected` ones, in the caller's transaction, and count them in memory.

    One that is checked None is excluded, and has no route.
    """
    keys = routes.add(Counter(one for one in checked if one is not None))
    store.insert(
        ReplayItem(batch=batch),
        [
            {
                "position": position,
                "parked_message_id": row.pk,
                "route_id": None if one is None else keys[one],
                "state": _choose_state(one),
                "is_repeat": row.is_repeat,
                "message_id": row.message_id,
                "size": row.size,
            }
            for position, (row, one) in enumerate(
                zip(rows, checked, strict=True), start=batch.selected + 1
            )
        ],
    )
    batch.selected += len(rows)
    batch.prepared_to = rows[-1].pk
    batch.repeats += sum(row.is_repeat for row in rows)
    batch.excluded += checked.count(None)


def read_items(batch: ReplayBatch, after: int, number: int) -> list[FrozenItem]:
    """The next items after this position."""
    rows = batch.items.filter(position__gt=after).order_by("position")
    return [FrozenItem(*row) for row in rows.values_list(*_ITEM_COLUMNS)[:number]]


def reroute_items(
    items: Sequence[FrozenItem], checked: Sequence[CheckedTarget | None], routes: Routes
) -> None:
    """Each goes as it was checked, in the caller's transaction; None excludes it."""
    keys = routes.add(Counter(one for one in checked if one is not None))
    items_by_route: dict[tuple[int | None, ItemState], list[int]] = {}
    for item, one in zip(items, checked, strict=True):
        route = None if one is None else keys[one]
        items_by_route.setdefault((route, _choose_state(one)), []).append(item.pk)
    if len(items_by_route) <= len(items) // 10 + 1:
        for (route, state), some in items_by_route.items():
            ReplayItem.objects.filter(pk__in=some).update(route=route, state=state)
        return
    changed = [
        ReplayItem(pk=pk, route_id=route, state=state)
        for (route, state), some in items_by_route.items()
        for pk in some
    ]
    ReplayItem.objects.bulk_update(changed, ["route", "state"])


def _choose_state(checked: CheckedTarget | None) -> ItemState:
    return ItemState.EXCLUDED if checked is None else ItemState.PENDING


class CheckedTarget(NamedTuple):
    """A target with its verdict of the dry run: the columns of a ReplayRoute.

    Both names are empty when there is no target.
    """

    exchange: str
    routing_key: str
    why: str
    verdict: str
    ending: str
    is_good: bool
    after_ms: int

    @property
    def has_target(self) -> bool:
        return bool(self.exchange or self.routing_key)


class Routes:
    """The routes of one batch; who rolls a transaction back makes a new one.

    A row without items is left of an earlier dry run, and is written over before one is added:
    to delete it, the database would look through all items for one that has it.
    """

    def __init__(self, batch: ReplayBatch) -> None:
        self._batch = batch
        rows = batch.routes.order_by("pk")
        used = rows.filter(items_number__gt=0).values_list(*CheckedTarget._fields, "pk")
        self._known = {CheckedTarget(*row[:-1]): row[-1] for row in used[:MOST_KNOWN]}
        self._free = list(rows.filter(items_number=0).values_list("pk", flat=True)[:MOST_KNOWN])

    def add(self, counted: Counter[CheckedTarget]) -> Mapping[CheckedTarget, int]:
        """Count so many items in; the key of each one's route. In the caller's transaction."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        new = [checked for checked in counted if checked not in self._known]
        for checked in (checked for checked in counted if checked in self._known):
            rows = ReplayRoute.objects.filter(pk=self._known[checked])
            rows.update(items_number=F("items_number") + counted[checked])
        while new and self._free:
            checked, key = new.pop(0), self._free.pop(0)
            values = {**checked._asdict(), "items_number": counted[checked]}
            ReplayRoute.objects.filter(pk=key).update(**values)
            self._known[checked] = key
        rows_new = [{**one._asdict(), "items_number": counted[one]} for one in new]
        keys = store.insert(ReplayRoute(batch=self._batch), rows_new)
        self._known.update(zip(new, keys, strict=True))
        return {checked: self._known[checked] for checked in counted}
