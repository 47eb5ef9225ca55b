"""Which intercepted messages are changed, and how that is written down before they are acked."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from analytics import facts
from analytics.events import bounded
from analytics.models import ScheduledMessage
from analytics.recorder.copies import content_of
from analytics.scheduled.projection import close_rows
from delayboard.changes.check import LEAD
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from delayboard.models.scheduled_change import OPEN
from topology import audit
from topology.deaths import read_history
from topology.message import DOUBLED_HEADER, Message, Publish
from topology.models import Topology
from topology.transfer.forwarder import Altered

# Header of what stands for a changed message. Headers “x-opt-” change no content id.
CHANGE_HEADER = "x-opt-delayboard-change"
# Time after its due time when a message that did not come is abandoned, once nothing is waiting.
GRACE = timedelta(seconds=30)
# Time for which a message that was taken out is known, should it come once more.
REMEMBERED = timedelta(hours=1)
# Action of the audit log for a change that took effect.
ACTIONS = {
    ChangeKind.CANCEL: "message cancelled",
    ChangeKind.RESCHEDULE: "message rescheduled",
    ChangeKind.DELIVER_NOW: "message delivered now",
}


class Tombstones:
    """The changes of one interception, forwarder or queue, by what names their messages.

    With `is_at_due_time` only those whose messages come now, at the end of their delay. With
    `is_read_whole`, `is_settled` says which messages cannot come again.
    """

    def __init__(
        self,
        changes: QuerySet[ScheduledChange],
        *,
        is_at_due_time: bool = True,
        is_read_whole: bool = False,
    ) -> None:
        self._changes = changes
        self._is_at_due_time = is_at_due_time
        self._is_read_whole = is_read_whole
        # Those whose message has come in this session, though it may not be written down yet.
        self.taken_changes: set[int] = set()
        self._by_key: dict[str, list[ScheduledChange]] = {}
        # Messages (rows) whose change was undone or failed, by key and content: they go on.
        self._passing: dict[tuple[str, str], set[int | None]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the changes again; an unconfirmed copy replaces no message.

        A row that is as it was is not made into an object again: a busy interception reloads twice
        a second, while its messages wait for the interpreter.
        """
        # Its message may come once more: a broker that is killed forgets an ack that it had.
        now = timezone.now()
        done = Q(state=ChangeState.DONE, ended_at__gt=now - REMEMBERED)
        if self._is_read_whole:
            done = Q(state=ChangeState.DONE, is_settled=False)
        rows = self._changes.filter(Q(state__in=OPEN) | done)
        if self._is_at_due_time:
            rows = rows.filter(due_at__lte=now + 2 * LEAD)
        rows = rows.exclude(is_copied=True, copied_at=None)
        states = dict(rows.values_list("pk", "state"))
        known = {one.pk: one for changes in self._by_key.values() for one in changes}
        new = [pk for pk, state in states.items() if pk not in known or known[pk].state != state]
        if new:
            known |= self._changes.select_related("topology", "broker").in_bulk(new)
        found: dict[str, list[ScheduledChange]] = defaultdict(list)
        for pk in states:
            if pk in known:
                found[known[pk].key].append(known[pk])
        self._by_key = dict(found)
        ended = Q(state__in=(ChangeState.UNDONE, ChangeState.FAILED, ChangeState.MISSED))
        passing = self._changes.filter(ended, ended_at__gt=now - REMEMBERED)
        self._passing = {}
        for key, content, row in passing.values_list("key", "content_id", "message__pk"):
            self._passing.setdefault((key, content), set()).add(row)

    @property
    def changes(self) -> set[int]:
        """The keys of all changes that were read."""
        return {one.pk for changes in self._by_key.values() for one in changes}

    def find(self, message: Message) -> ScheduledChange | None:
        """The change of this message, None for one that passes.

        Neither one of the same id and another content or delay is it, nor one that comes long
        before it, nor what was published for another change, unless this one was requested for
        that. One that was taken before is known again only when it is delivered again, or when a
        level dead-lettered it twice. Then the change is done, or its message is taken. Where an
        equal message goes on, none is known again: one that comes twice is better than one that is
        lost.
        """
        name = bounded(message.properties.message_id or "")
        if not self._by_key or (name and name not in self._by_key):
            return None
        content = content_of(message)
        until = timezone.now() + LEAD
        changes = [
            one
            for one in self._by_key.get(name or content, ())
            if one.content_id == content
            and one.routing_key in ("", message.routing_key)
            and (one.due_at <= until or not self._is_at_due_time)
        ]
        changes = _without_own(changes, message.tag(CHANGE_HEADER))
        new = [one for one in changes if one.pk not in self.taken_changes]
        waiting = [one for one in new if one.state in OPEN]
        trip = trip_of(message) if changes else ""
        if waiting:
            waiting[0].trip = trip
            return waiting[0]
        # One that is changed after all, as by an undo and another request, does not go on.
        changed = {one.message_id for one in changes} - {None}
        if self._passing.get((name or content, content), set()) - changed:
            return None
        copied = [one for one in changes if trip and trip == one.trip]
        # Each change of equal messages is found once before one is found again.
        again = [one for one in new if message.redelivered or one in copied]
        return next(iter(again or copied), None)


def _without_own(changes: list[ScheduledChange], own: str) -> list[ScheduledChange]:
    """The changes of a message that the change with the number `own` published; all for none.

    The recorded message of such a change has the number in its headers. Of an equal message, too, a
    change can be requested and wait for it.
    """
    if not own.isdecimal():
        return changes
    return [
        one
        for one in changes
        if one.message and str(headers_of(one.message).get(CHANGE_HEADER)) == own
    ]


def trip_of(message: Message) -> str:
    """The first death of its delay, the same on a copy that its levels made; "" without one.

    A level that dead-letters at least once publishes again what had no confirm at a kill.
    """
    deaths = read_history(message.headers).deaths
    first_at = deaths[0].first_at if deaths else None
    return f"{first_at:%Y-%m-%dT%H:%M:%S} {deaths[0].queue}" if first_at else ""


def begin(change: ScheduledChange) -> bool:
    """Write down that its message is published again; False when it was undone meanwhile."""
    rows = ScheduledChange.objects.filter(pk=change.pk, state__in=OPEN)
    is_again = change.state == ChangeState.PUBLISHING
    changes = {"may_be_duplicated": True} if is_again else {}
    if not rows.update(state=ChangeState.PUBLISHING, **changes):
        return False
    change.state = ChangeState.PUBLISHING
    change.may_be_duplicated = change.may_be_duplicated or is_again
    return True


def finish(change: ScheduledChange, message: Message | Publish) -> bool:
    """Write down that its message is taken out; False when it was undone meanwhile."""
    now = timezone.now()
    with transaction.atomic():
        rows = ScheduledChange.objects.filter(pk=change.pk, state__in=OPEN)
        if not rows.update(state=ChangeState.DONE, ended_at=now, trip=change.trip):
            return False
        if change.interception_id is None and change.message_id:
            close_rows(change.topology, [change.message_id])
        state = partial(
            facts.state,
            broker=change.broker,
            topology=change.topology,
            message=message,
            destination=change.destination,
            at=now,
        )
        if change.interception_id is None and isinstance(message, Publish):
            # No tap sees it leave.
            state(kind="moved")
        state(
            kind="published" if isinstance(message, Publish) else "cancelled",
            requested_delay=max(timedelta(0), (change.new_due_at or now) - now),
        )
        audit.record(
            None,
            ACTIONS[ChangeKind(change.kind)],
            broker=change.broker,
            what=f"{change.key} for {change.destination}",
            details=change.audit_details,
        )
    change.state = ChangeState.DONE
    return True


def fail(change: ScheduledChange, error: str, *, may_have_arrived: bool = False) -> None:
    """The message goes on as it is, beside a copy that was begun to be published, and beside what
    takes its place where that `may_have_arrived`.
    """
    change.state = ChangeState.FAILED
    change.may_be_duplicated = (
        change.may_be_duplicated or change.copy_begun_at is not None or may_have_arrived
    )
    ScheduledChange.objects.filter(pk=change.pk).update(
        state=ChangeState.FAILED,
        error=error,
        ended_at=timezone.now(),
        may_be_duplicated=change.may_be_duplicated,
    )


def abandon(changes: QuerySet[ScheduledChange], why: str) -> None:
    """Abandon the changes whose messages should have come by now."""
    now = timezone.now()
    missed = changes.filter(state__in=OPEN, due_at__lt=now - GRACE)
    # Beside a copy, and beside what was published in its place, the message itself arrived.
    missed.exclude(copy_begun_at=None, state=ChangeState.PENDING).update(may_be_duplicated=True)
    missed.update(state=ChangeState.MISSED, ended_at=now, error=why)


class ChangedMessages:
    """The changes that a forwarder finds for a message; read again from time to time."""

    def __init__(self, topology: Topology) -> None:
        self._changes = ScheduledChange.objects.filter(topology=topology, interception=None)
        self._tombstones = Tombstones(self._changes, is_at_due_time=False)

    def reload(self) -> None:
        abandon(
            self._changes, "The message did not pass the forwarder. It may have been delivered."
        )
        self._tombstones.reload()

    def alter(self, message: Message) -> Altered | Literal["drop"] | None:
        """What becomes of it, which is written down first; None when it passes as it is.

        One that comes again after its replacement was confirmed is dropped.
        """
        change = self._tombstones.find(message)
        if change is None:
            return None
        if change.state == ChangeState.DONE:
            return "drop"
        if change.pk in self._tombstones.taken_changes:
            return None
        if change.kind == ChangeKind.CANCEL:
            return "drop" if finish(change, message) else None
        headers = stated_headers(change)
        if not begin(change):
            return None
        self._tombstones.taken_changes.add(change.pk)
        at = change.new_due_at or timezone.now()
        return Altered(int(at.timestamp() * 1000), headers, partial(finish, change))


def stated_headers(change: ScheduledChange) -> dict[str, str]:
    """The headers that say what a message stands for, and whether it may be there twice."""
    stated = {CHANGE_HEADER: str(change.pk)}
    is_begun = change.state == ChangeState.PUBLISHING or change.copy_begun_at is not None
    if is_begun or change.may_be_duplicated:
        # It was begun before, and nothing says that the broker did not get it.
        stated[DOUBLED_HEADER] = "1"
    return stated


def headers_of(row: ScheduledMessage) -> dict[str, Any]:
    """The headers that were recorded; none where they cannot be read."""
    try:
        headers = json.loads(row.headers_json)
    except ValueError:
        return {}
    return headers if isinstance(headers, dict) else {}
