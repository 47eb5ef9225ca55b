"""The items of a batch as rows: frozen once, put into other routes when a draft is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db.models import F

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.replay.batch.selection import SelectedMessage
from delayboard.models import ItemState, ReplayBatch, ReplayItem, ReplayRoute

# Routes that are remembered; beyond, equal ones may be several rows.
MOST_KNOWN = 20_000
_COLUMNS = (
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
    return [FrozenItem(*row) for row in rows.values_list(*_COLUMNS)[:number]]


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
