"""The present states of the messages that an open list shows, by their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from analytics.models import ScheduledMessage
from analytics.scheduled.pages.lines import Reader
from analytics.scheduled.queries import listing
from delayboard.models import ChangeKind, ChangeState, ParkedMessage, ParkedState, ScheduledChange
from topology.graph.live_values import make_version
from topology.models import Broker

DELETED = "deleted"
_CHANGED = {ChangeKind.CANCEL: "cancelled", ChangeKind.RESCHEDULE: "rescheduled"}


def scheduled_rows(brokers: Collection[Broker], ids: Collection[int]) -> Mapping[int, str]:
    """How those of these messages ended that no longer wait."""
    waiting = listing.waiting(brokers, now=datetime.now(UTC)).filter(pk__in=ids).order_by()
    no_longer_waiting = set(ids).difference(waiting.values_list("pk", flat=True))
    states: dict[int, str] = dict.fromkeys(no_longer_waiting, DELETED)
    known = ScheduledMessage.objects.filter(pk__in=no_longer_waiting, broker__in=brokers)
    of_ending = known.only("entered_at", "due_at", "left_at", "caught_up")
    states |= {row.pk: row.ending for row in of_ending}
    changes = ScheduledChange.objects.filter(
        message__in=no_longer_waiting, broker__in=brokers, state=ChangeState.DONE, kind__in=_CHANGED
    )
    for number, kind in changes.values_list("message_id", "kind"):
        states[number or 0] = _CHANGED[ChangeKind(kind)]
    return states


def make_message_version(row: ScheduledMessage, now: datetime) -> str:
    """Changes when the page of a scheduled message shows another state or another change."""
    changes = ScheduledChange.objects.filter(message=row).order_by("pk")
    steps = tuple(changes.values_list("pk", "state", "copied_at", "ended_at"))
    line = Reader(None).line(row, now)
    return make_version(line.state, line.remaining_hops, row.left_at, row.entered_at, steps)


def parked_rows(brokers: Collection[Broker], ids: Iterable[int]) -> Mapping[int, str]:
    """The states of these messages."""
    rows = ParkedMessage.objects.filter(pk__in=ids, broker__in=brokers)
    states = dict(rows.values_list("pk", "state"))
    return {pk: ParkedState(states[pk]).label if pk in states else DELETED for pk in ids}
