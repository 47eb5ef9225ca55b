"""Why messages of a replay failed: not confirmed by the broker, or dead-lettered again."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from delayboard.dead_letters.parked.redact_cause import seen_group
from delayboard.dead_letters.replay.batch.change_state import AT_ONCE
from delayboard.models import MessageGroup, ReplayBatch, ReplayItem
from delayboard.models.replay import REMAINING, ReplayOutcome
from topology.deaths import History, read_history
from topology.redaction import Redaction

MOST = 3


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
