"""The states of letters: the one place that changes them and counts their groups over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import F

from delayboard.dead_letters.among import among
from delayboard.models import DeadLetter, LetterGroup, LetterState

# SQLite takes a statement of at most a million bytes (sqlite.org/limits.html).
AT_ONCE = 1000


def change_letters(
    keys: Iterable[int],
    before: Collection[LetterState],
    after: LetterState,
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """Change those of the letters that are in one of the states `before`; their keys, in order.

    In the caller's transaction. `by` is an account, its key, or None.
    """
    return change_each(dict.fromkeys(keys, after), before, by=by, at=at)


def change_each(
    wanted: Mapping[int, LetterState],
    before: Collection[LetterState],
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """The same with a state for each letter.

    First all letters are locked by their keys, then all groups by theirs: whoever does both does
    it in this order, and so nobody waits in a circle.
    """
    ordered = sorted(wanted)
    groups: dict[int, Counter[str]] = {}
    changed: list[int] = []
    for start in range(0, len(ordered), AT_ONCE):
        rows = _locked(ordered[start : start + AT_ONCE], before)
        changed += [key for key, _, _ in rows]
        for after, some in sorted(_by_state(rows, wanted).items()):
            for (group, state), number in Counter([row[1:] for row in some]).items():
                counts = groups.setdefault(group, Counter())
                counts[state] -= number
                counts[after] += number
            keys = [key for key, _, _ in some]
            DeadLetter.objects.filter(among(keys)).update(state=after, state_at=at, state_by=by)
    for group, counts in sorted(groups.items()):
        changes = {state: F(state) + number for state, number in counts.items() if number}
        if changes:
            LetterGroup.objects.filter(pk=group).update(**changes)
    return changed


def _by_state(
    rows: Iterable[tuple[int, int, str]], wanted: Mapping[int, LetterState]
) -> dict[LetterState, list[tuple[int, int, str]]]:
    found: dict[LetterState, list[tuple[int, int, str]]] = {}
    for row in rows:
        found.setdefault(wanted[row[0]], []).append(row)
    return found


def _locked(keys: list[int], before: Collection[LetterState]) -> list[tuple[int, int, str]]:
    rows = DeadLetter.objects.filter(among(keys), state__in=before).order_by("pk")
    return list(rows.select_for_update().values_list("pk", "group_id", "state"))
