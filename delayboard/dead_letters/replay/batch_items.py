"""The messages that a batch selects, by their ids, and its items and routes as rows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    found = rows.order_by("pk").values_list(*_MESSAGE_COLUMNS)[:number]
    return [SelectedMessage(*row) for row in found]


_MESSAGE_COLUMNS: Sequence[str] = (
    *("pk", "group_id", "queue", "properties", "message_id", "size"),
    "repeat_of_id",
)


# Routes that are remembered; beyond, equal ones may be several rows.
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
        """Of what is sent."""
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
    """Add items behind the `selected` ones, in the caller's transaction.

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
    """Those of one batch; whoever rolls a transaction back makes a new one.

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
