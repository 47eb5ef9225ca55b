"""The items of a replay page by page, with as much of each as the person may see."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, QuerySet

from delayboard.dead_letters.parked.redact_cause import hides_history, seen_group
from delayboard.dead_letters.replay.batch.change_state import AT_ONCE
from delayboard.models import (
    ItemState,
    MessageGroup,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ReplayRoute,
)
from delayboard.models.replay import OPEN, REMAINING, ReplayOutcome, TargetMode
from topology.database import paging
from topology.database.paging import Page
from topology.deaths import History, read_history
from topology.redaction import HIDDEN, Redaction

MOST = 3
PAGE = 50
# Where these lead is worked out from the headers of the messages.
_FOUND = (TargetMode.DEFAULT, TargetMode.FIRST_QUEUE)
SHOWN = {
    **{str(state): state.label for state in ItemState},
    "bad": "a bad dry run",
    "repeats": "possible repeats",
    "doubled": "may be duplicated",
    "edited": "edited",
    **{f"was-{outcome}": outcome.label for outcome in ReplayOutcome},
}


@dataclass(frozen=True)
class ItemFilter:
    """Which items: one of SHOWN or "", a route's id or None."""

    shown: str
    route: int | None


def hides_targets(batch: ReplayBatch, rules: Redaction) -> bool:
    """Whether the targets of its messages show what a rule redacts."""
    return batch.mode in _FOUND and hides_history(rules)


def read_page(batch: ReplayBatch, asked: ItemFilter, after: str) -> Page[ReplayItem]:
    """In the order of their positions."""
    rows = _filter_items(batch, asked).select_related("route", "parked_message__repeat_of")
    rows = rows.defer("parked_message__properties", "parked_message__repeat_of__properties")
    edits = ReplayEdit.objects.filter(item=OuterRef("pk"))
    return paging.read_page(rows.annotate(is_edited=Exists(edits)), after, PAGE, "position")


def _filter_items(batch: ReplayBatch, asked: ItemFilter) -> QuerySet[ReplayItem]:
    rows = batch.items.all()
    if asked.route is not None:
        rows = rows.filter(route=asked.route)
    if asked.shown == "bad":
        return rows.filter(route__in=batch.routes.filter(is_good=False).order_by().values("pk"))
    if asked.shown == ItemState.PENDING:
        return rows.filter(state__in=OPEN)
    if asked.shown == "repeats":
        return rows.filter(is_repeat=True)
    if asked.shown == "doubled":
        return rows.filter(may_be_duplicated=True)
    if asked.shown == "edited":
        return rows.filter(edit__isnull=False)
    if asked.shown.startswith("was-"):
        return rows.filter(outcome=asked.shown.removeprefix("was-"))
    return rows.filter(state=asked.shown) if asked.shown else rows


def list_filters(batch: ReplayBatch, bad: int, asked: str) -> list[tuple[str, str, int | None]]:
    """The values of SHOWN that occur in the batch, and the selected one: with its label and count,
    None when nobody counts.
    """
    if batch.is_draft:
        numbers: dict[str, int | None] = {"bad": bad, "edited": None}
    else:
        numbers = {**batch.counts(), "doubled": batch.doubled, "bad": bad}
        # They are found among the repeats.
        del numbers[ItemState.EXCLUDED]
        numbers |= {"was-delivered": batch.delivered, "was-died": batch.died, "was-delayed": None}
    numbers["repeats"] = batch.repeats
    numbers.setdefault(asked, None)
    return [
        (value, SHOWN[value], number)
        for value, number in numbers.items()
        if value and (number != 0 or value == asked)
    ]


def redact_route(route: ReplayRoute) -> ReplayRoute:
    """The route to be shown, never to be saved, to whom its names are hidden."""
    shown = copy(route)
    shown.exchange = shown.routing_key = shown.why = shown.verdict = HIDDEN
    return shown


@dataclass(frozen=True)
class Failure:
    """One item. Of one that was dead-lettered again, `group` and `history` are those of the message
    as which it was parked again; without them, as long as nobody parks it.
    """

    item: ReplayItem
    group: MessageGroup | None
    history: History


def read_failures(batch: ReplayBatch, rules: Redaction) -> list[Failure]:
    """The first MOST; the texts as `rules` let them be seen, the history in full."""
    if not batch.died and not batch.remaining:
        return []
    rows = batch.items.filter(Q(outcome=ReplayOutcome.DIED) | Q(state__in=REMAINING))
    rows = rows.select_related("died_as__group").order_by("position")
    return [_describe(item, rules) for item in rows[:MOST]]


def _describe(item: ReplayItem, rules: Redaction) -> Failure:
    again = item.died_as
    if again is None:
        return Failure(item, None, History())
    history = read_history(again.without_body.headers)
    return Failure(item, seen_group(again.group, rules), history)


def count_died_before(batch: ReplayBatch) -> int:
    """How many messages of a draft died after an earlier replay; 0 for a large draft."""
    if batch.selected > AT_ONCE:
        return 0
    ids = batch.items.exclude(parked_message=None).order_by().values("parked_message")
    return ReplayItem.objects.filter(died_as__in=ids).values("died_as").distinct().count()
