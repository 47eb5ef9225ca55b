"""The states of messages: the one place that changes them and counts their groups over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Count, F

from delayboard.models import MessageGroup, ParkedMessage, ParkedState
from topology.database.select_keys import match_keys

# SQLite takes a statement of at most a million bytes (sqlite.org/limits.html).
AT_ONCE = 1000


def change_parked_messages(
    keys: Iterable[int],
    before: Collection[ParkedState],
    after: ParkedState,
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """Change those of the messages that are in one of the states `before`; their keys, in order.

    In the caller's transaction. `by` is an account, its key, or None.
    """
    return change_each(dict.fromkeys(keys, after), before, by=by, at=at)


def change_each(
    wanted: Mapping[int, ParkedState],
    before: Collection[ParkedState],
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """The same with a state for each message.

    First all messages are locked by their keys, then all groups by theirs: whoever does both does
    it in this order, and so nobody waits in a circle.
    """
    ordered = sorted(wanted)
    groups: dict[int, Counter[str]] = {}
    changed: list[int] = []
    for start in range(0, len(ordered), AT_ONCE):
        some = ordered[start : start + AT_ONCE]
        _lock(some)
        for after in sorted({wanted[key] for key in some}):
            keys = [key for key in some if wanted[key] == after]
            changed += _change(keys, before, after, groups, state_at=at, state_by=by)
    for group, counts in sorted(groups.items()):
        changes = {state: F(state) + number for state, number in counts.items() if number}
        if changes:
            MessageGroup.objects.filter(pk=group).update(**changes)
    return sorted(changed)


def _lock(keys: list[int]) -> None:
    if connection.features.has_select_for_update:
        rows = ParkedMessage.objects.filter(match_keys(keys)).order_by("pk")
        # A parker that names one as an earlier repeat must not wait for it: it holds the group.
        list(rows.select_for_update(no_key=True).values_list("pk"))


def _change(
    keys: list[int],
    before: Collection[ParkedState],
    after: ParkedState,
    groups: dict[int, Counter[str]],
    **values: Any,
) -> list[int]:
    """Change locked messages, and add to `groups` what becomes of their counts."""
    # With a condition on states, SQLite would read all messages in these states.
    rows = ParkedMessage.objects.filter(match_keys(keys)).order_by()
    counted = list(rows.values_list("group_id", "state").annotate(Count("pk")))
    if sum(number for _, state, number in counted if state in before) < len(keys):
        found = rows.order_by("pk").values_list("pk", "state")
        keys = [key for key, state in found if state in before]
        if not keys:
            return []
        rows = ParkedMessage.objects.filter(match_keys(keys)).order_by()
    rows.update(state=after, **values)
    for group, state, number in counted:
        if state in before:
            counts = groups.setdefault(group, Counter())
            counts[state] -= number
            counts[after] += number
    return keys
