"""The present states of the messages that open lists show, as texts and marks of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from analytics.models import ScheduledMessage
from analytics.scheduled.pages.lines import Reader
from analytics.scheduled.queries import listing
from delayboard.live.page_state import State, state
from delayboard.models import ChangeKind, ChangeState, ParkedMessage, ParkedState, ScheduledChange
from topology.database.paging import row_number
from topology.graph.live_values import make_version
from topology.models import Broker

# Of all open lists of a broker; a page shows fifty rows.
MOST_ROWS = 5_000
DELETED, CHANGED = "deleted", "changed"
_CHANGED = {ChangeKind.CANCEL: "cancelled", ChangeKind.RESCHEDULE: "rescheduled"}


def scheduled_state(brokers: Collection[Broker], keys: Collection[str]) -> State:
    """The states of the keys `scheduled/<id>` whose message no longer waits."""
    numbers = {key: _number(key, "scheduled") for key in keys}
    shown = {pk: key for key, pk in numbers.items() if pk is not None}
    ids = sorted(shown)[:MOST_ROWS]
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
    return _make_state({shown[pk]: states[pk] for pk in no_longer_waiting})


def make_message_version(row: ScheduledMessage, now: datetime) -> str:
    """Changes when the page of a scheduled message shows another state or another change."""
    changes = ScheduledChange.objects.filter(message=row).order_by("pk")
    steps = tuple(changes.values_list("pk", "state", "copied_at", "ended_at"))
    line = Reader(None).line(row, now)
    return make_version(line.state, line.remaining_hops, row.left_at, row.entered_at, steps)


def parked_state(brokers: Collection[Broker], keys: Iterable[str]) -> State:
    """The states of the keys `parked/<id>/<state>` whose message has another state."""
    shown: dict[int, dict[str, str]] = {}
    for key in sorted(keys)[:MOST_ROWS]:
        place, _, listed = key.rpartition("/")
        number = _number(place, "parked")
        if number is not None:
            shown.setdefault(number, {})[key] = listed
    rows = ParkedMessage.objects.filter(pk__in=shown, broker__in=brokers)
    states = dict(rows.values_list("pk", "state"))
    found = {
        key: ParkedState(states[pk]).label if pk in states else DELETED
        for pk, listed in shown.items()
        for key, before in listed.items()
        if states.get(pk) != before
    }
    return _make_state(found)


def _make_state(texts: Mapping[str, str]) -> State:
    return state(at=None, cells=texts, marks=dict.fromkeys(texts, CHANGED))


def _number(key: str, kind: str) -> int | None:
    found, _, number = key.partition("/")
    return row_number(number) if found == kind else None
