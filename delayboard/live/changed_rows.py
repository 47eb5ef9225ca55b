"""The present states of the messages that open lists show, as marks of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from analytics.models import ScheduledMessage
from analytics.scheduled.queries import listing
from delayboard.live.page_state import State, state
from delayboard.models import ChangeKind, ChangeState, ParkedMessage, ScheduledChange
from topology.database.paging import row_number
from topology.models import Broker

# Of all open lists of a broker; a page shows fifty rows.
MOST_ROWS = 5_000
DELETED, DELIVERED = "deleted", "delivered"
_CHANGED = {ChangeKind.CANCEL: "cancelled", ChangeKind.RESCHEDULE: "rescheduled"}


def scheduled_state(brokers: Collection[Broker], keys: Collection[str]) -> State:
    """Marks of the keys `scheduled/<id>` whose message no longer waits."""
    numbers = {key: _number(key, "scheduled") for key in keys}
    shown = {pk: key for key, pk in numbers.items() if pk is not None}
    ids = sorted(shown)[:MOST_ROWS]
    waiting = listing.waiting(brokers, now=datetime.now(UTC)).filter(pk__in=ids).order_by()
    no_longer_waiting = set(ids).difference(waiting.values_list("pk", flat=True))
    marks: dict[int, str] = dict.fromkeys(no_longer_waiting, DELETED)
    known = ScheduledMessage.objects.filter(pk__in=no_longer_waiting, broker__in=brokers)
    marks |= dict.fromkeys(known.values_list("pk", flat=True), DELIVERED)
    changes = ScheduledChange.objects.filter(
        message__in=no_longer_waiting, broker__in=brokers, state=ChangeState.DONE, kind__in=_CHANGED
    )
    for number, kind in changes.values_list("message_id", "kind"):
        marks[number or 0] = _CHANGED[ChangeKind(kind)]
    return state(at=None, cells={}, marks={shown[pk]: marks[pk] for pk in no_longer_waiting})


def parked_state(brokers: Collection[Broker], keys: Iterable[str]) -> State:
    """Marks of the keys `parked/<id>/<state>` whose message has another state."""
    shown: dict[int, dict[str, str]] = {}
    for key in sorted(keys)[:MOST_ROWS]:
        place, _, listed = key.rpartition("/")
        number = _number(place, "parked")
        if number is not None:
            shown.setdefault(number, {})[key] = listed
    rows = ParkedMessage.objects.filter(pk__in=shown, broker__in=brokers)
    states = dict(rows.values_list("pk", "state"))
    marks = {
        key: states.get(pk, DELETED)
        for pk, listed in shown.items()
        for key, before in listed.items()
        if states.get(pk) != before
    }
    return state(at=None, cells={}, marks=marks)


def _number(key: str, kind: str) -> int | None:
    found, _, number = key.partition("/")
    return row_number(number) if found == kind else None
