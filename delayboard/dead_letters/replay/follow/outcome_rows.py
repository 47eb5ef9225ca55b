"""Writes the outcome of items to their rows by SQL: the ORM's objects take many times as long,
and thousands of messages may return at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.db.models import F

from delayboard.models import ItemState, ReplayBatch, ReplayItem

_NAMES = ("outcome", "outcome_at", "died_as_id")
_FIELDS = {field.attname: field for field in ReplayItem._meta.concrete_fields}


class Mark(NamedTuple):
    """`died_as` is the id of a message."""

    item: int
    outcome: str
    at: datetime
    died_as: int | None = None


def write_marks(marks: Sequence[Mark]) -> None:
    """In the caller's transaction, which has locked the items."""
    if not marks:
        return
    quoted = connection.ops.quote_name
    sets = ", ".join(f"{quoted(str(_FIELDS[name].column))} = %s" for name in _NAMES)
    table, key = quoted(ReplayItem._meta.db_table), quoted("id")
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET {sets} WHERE {key} = %s",  # noqa: S608
            [(one.outcome, moment(one.at), one.died_as, one.item) for one in marks],
        )


def count_arrived(batch: int, items: Collection[int]) -> None:
    """What may have arrived has: these items count as done. In the caller's transaction, which has
    locked them.
    """
    unknown = ReplayItem.objects.filter(pk__in=items, state=ItemState.UNKNOWN)
    if number := unknown.update(state=ItemState.DONE):
        rows = ReplayBatch.objects.filter(pk=batch)
        rows.update(done=F("done") + number, unknown=F("unknown") - number)
