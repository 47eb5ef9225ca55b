"""The routes of a batch as rows: equal ones are one, and each counts its items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from django.db.models import F

from delayboard.dead_letters.parked import store
from delayboard.models import ReplayBatch, ReplayRoute

# Beyond so many, equal ones may be several rows.
MOST_KNOWN = 20_000


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
