"""What became of the messages of a batch, written down: items, letters, counts and facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import F, QuerySet

from analytics import facts
from delayboard.dead_letters.replay.claims import handed_before
from delayboard.dead_letters.states import change_each
from delayboard.models import ItemState, LetterState, ReplayBatch, ReplayItem
from delayboard.models.replay import Outcome
from topology.message import Publish


class Taken(NamedTuple):
    """An item that was taken to be published; `told` is None for what cannot be.

    `is_marked` says that it may be duplicated by what is known before it is published. `tapped` is
    what was published where a tap of ours is bound.
    """

    position: int
    letter: int | None
    is_handed: bool
    is_marked: bool
    queue: str = ""
    told: facts.Stated | None = None
    tapped: Publish | None = None


class Ending(NamedTuple):
    """How it ended; `again` when there may be one more of it in the broker than that says."""

    taken: Taken
    state: ItemState
    error: str = ""
    again: bool = False


def write(batch: ReplayBatch, endings: Sequence[Ending], at: datetime) -> None:
    """All of it in the caller's transaction, which has the batch's work locked."""
    change_each(
        _letter_states(batch, endings),
        (LetterState.REPLAYING,),
        by=batch.started_by_id,
        at=at,
    )
    _write_items(batch, endings, at)
    doubled = [one.taken.position for one in endings if one.again and not one.taken.is_marked]
    if doubled:
        items_at(batch, doubled).update(may_be_duplicated=True)
    done = [one.taken for one in endings if one.state == ItemState.DONE]
    facts.state_all(
        broker=batch.broker,
        kind="replayed",
        of=[(one.queue, one.told) for one in done if one.told is not None],
        at=at,
    )
    counts = Counter(str(one.state) for one in endings)
    _count(batch, {**counts, "doubled": len(doubled)})


def items_at(batch: ReplayBatch, positions: Collection[int]) -> QuerySet[ReplayItem]:
    """The items at these positions; most often they are a range, which costs much less."""
    rows = ReplayItem.objects.filter(batch=batch.pk)
    if not positions:
        return rows.none()
    first, last = min(positions), max(positions)
    if last - first + 1 == len(positions):
        return rows.filter(position__gte=first, position__lte=last)
    return rows.filter(position__in=positions)


def _letter_states(batch: ReplayBatch, endings: Sequence[Ending]) -> dict[int, LetterState]:
    """Gone, given to a delay, or as they were before this batch claimed them."""
    wanted = {}
    for one in endings:
        if one.taken.letter is not None:
            wanted[one.taken.letter] = (
                LetterState.PARKED
                if one.state != ItemState.DONE
                else LetterState.HANDED
                if one.taken.is_handed
                else LetterState.REPLAYED
            )
    parked = [letter for letter, state in wanted.items() if state == LetterState.PARKED]
    if parked:
        wanted.update(dict.fromkeys(handed_before(batch, parked), LetterState.HANDED))
    return wanted


def _write_items(batch: ReplayBatch, endings: Sequence[Ending], at: datetime) -> None:
    alike: dict[tuple[ItemState, str, bool], list[int]] = {}
    for one in endings:
        is_handed = one.state == ItemState.DONE and one.taken.is_handed
        alike.setdefault((one.state, one.error, is_handed), []).append(one.taken.position)
    for (state, error, is_handed), positions in alike.items():
        rows = items_at(batch, positions)
        rows.update(state=state, error=error, ended_at=at)
        if is_handed:
            # What came back dead before its confirm was written down stays so.
            rows.filter(outcome="").update(outcome=Outcome.HANDED, outcome_at=at)


def _count(batch: ReplayBatch, counts: Mapping[str, int]) -> None:
    added = {name: number for name, number in counts.items() if number}
    if added:
        changes = {name: F(name) + number for name, number in added.items()}
        ReplayBatch.objects.filter(pk=batch.pk).update(**changes)


def counted(batch: ReplayBatch, endings: Sequence[Ending]) -> None:
    """The row in memory as `write` has left the stored one."""
    for one in endings:
        setattr(batch, one.state, getattr(batch, one.state) + 1)
