"""Changing messages in a delay queue: reading it whole, and putting all others back in place.

For delays that leave through the default exchange, where nothing can be intercepted. An exclusive
consumer takes every message without an ack. Those with a change are written down, published
again where the change says so, and acknowledged. A nack puts the others back: a classic queue keeps
their places and due times (tests/real_broker/test_read_queue.py). A kill puts all of them back, and
the rows say what was begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from delayboard.changes import take
from delayboard.changes.carry_out import Intercepted
from delayboard.changes.check import MOST_READ, is_only_cancelled, unreadable
from delayboard.changes.copies import publish_in_place
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from delayboard.models.scheduled_change import OPEN
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import publisher
from topology.broker.errors import (
    Blocked,
    BrokerError,
    Conflict,
    NotFound,
    Unreachable,
    alarm_sentence,
)
from topology.broker.management.client import Management
from topology.models import Work

# Longest reading of a queue, in seconds, and so the longest delay of a message that is due
# meanwhile.
LONGEST_READING_SECONDS = 20.0
WAIT_SECONDS = 0.2
# Time until a queue is read again where the next reading will hardly do better: each holds the
# queue.
TRY_LATER_AFTER = timedelta(minutes=1)
# Messages decoded, or changed, between two renewals of the lease.
AT_ONCE = 500
_LEFT = "The message left its delay before the worker read the queue. It was delivered unchanged."
_DOUBTFUL = (
    "The worker was killed while it changed this message. The message may have been delivered "
    "unchanged as well."
)


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Carry out what is requested for a queue's messages. Raises as `work.attempt` expects."""
    first = ScheduledChange.objects.filter(pk=claimed.subject).select_related("broker").first()
    try:
        if first is not None:
            _Reading(first, work.lease_of(claimed), stop, alive).run()
    except (_TooSlow, Blocked) as error:
        raise work.Later(str(error), after=TRY_LATER_AFTER) from error


class _TooSlow(Conflict):
    """The reading was given up after LONGEST_READING_SECONDS."""


class _Reading:
    """One reading of a queue, for all its changes that are not at their end."""

    def __init__(
        self, first: ScheduledChange, lease: work.Lease, stop: Event, alive: Callable[[], None]
    ) -> None:
        self._broker = first.broker
        self._queue = first.queue
        self._lease = lease
        self._stop = stop
        self._alive = alive
        self._changes = ScheduledChange.objects.filter(broker=self._broker, queue=self._queue)

    def run(self) -> None:
        """Raises BrokerError and Stopped: calling again goes on."""
        self._pulse()
        tombstones = take.Tombstones(self._changes, is_at_due_time=False, is_read_whole=True)
        # One that is requested from here on has a reading of its own.
        wanted = tombstones.changes
        if not wanted:
            return
        try:
            alarms = self._guard()
            with Consumer(
                self._broker.address,
                self._queue,
                prefetch=MOST_READ + 1,
                is_exclusive=True,
                in_thread=False,
            ) as taking:
                until = time.monotonic() + LONGEST_READING_SECONDS
                found = self._read(taking, tombstones, len(wanted), until)
                with taking.attended():
                    tags = self._take_out(found)
                # Before the others are published, which may take a while or fail.
                taking.ack(tags)
                with taking.attended():
                    tags, problem = self._move(found, alarms, until)
                taking.ack(tags)
        except (NotFound, Conflict) as error:
            self._end_late(self._changes, str(error))
            raise
        if not taking.is_given_back:
            raise Unreachable(f"The connection closed while “{self._queue}” was read.")
        seen = {change.pk for _, change, _ in found}
        unsettled = self._changes.filter(state=ChangeState.DONE, is_settled=False)
        unsettled.filter(pk__in=seen).update(is_settled=True)
        absent = wanted - seen
        rows = self._changes.filter(pk__in=absent)
        self._end_late(rows, _LEFT)
        self._end(rows.filter(state__in=OPEN), "The delay queue does not contain this message.")
        rows.filter(state=ChangeState.DONE).update(is_settled=True)
        if problem:
            raise problem

    def _guard(self) -> list[str]:
        """The alarms, which block publishes. Raises Blocked where all changes need one.

        Raises Conflict where the messages could not be put back as they were.
        """
        with Management(self._broker.address) as management:
            queue, alarms = management.queue(self._queue), management.alarms()
        latest = self._changes.select_related("topology").latest("pk")
        is_retry = is_only_cancelled(latest.topology.pattern)
        if problem := unreadable(queue, "" if is_retry else latest.destination):
            raise Conflict(problem)
        cancelled = self._changes.filter(kind=ChangeKind.CANCEL, state__in=OPEN)
        if alarms and not cancelled.exists():
            raise Blocked(alarm_sentence(alarms))
        return alarms

    def _read(
        self, taking: Consumer, tombstones: take.Tombstones, number: int, until: float
    ) -> Sequence[Intercepted]:
        """The messages with a change, once all are found, or no other message is in the queue."""
        found: list[Intercepted] = []
        seen = 0
        while len(found) < number:
            self._pulse()
            deliveries = taking.batch(limit=AT_ONCE, wait=WAIT_SECONDS, linger=0)
            # What was on its way comes before the answer to `depth`.
            if not deliveries and taking.depth() == 0 and not taking.waiting:
                break
            seen += len(deliveries)
            for delivery in deliveries:
                change = tombstones.find(message := delivery.message)
                if change is not None and change.pk not in tombstones.taken_changes:
                    tombstones.taken_changes.add(change.pk)
                    found.append(Intercepted(delivery.tag, change, message))
            if time.monotonic() > until:
                raise _TooSlow(self._took_long("No message was changed"))
            if seen > MOST_READ:
                raise Conflict(
                    f"“{self._queue}” has more messages than can be read at once. Wait until it "
                    "has fewer."
                )
        return found

    def _take_out(self, found: Sequence[Intercepted]) -> list[int]:
        """The tags of what is cancelled, or was begun before; each is written down before."""
        cancelled = [
            one
            for one in found
            if one.change.state != ChangeState.DONE and one.change.kind == ChangeKind.CANCEL
        ]
        tags = [one.tag for one in found if one.change.state == ChangeState.DONE]
        for first in range(0, len(cancelled), AT_ONCE):
            self._pulse()
            some = cancelled[first : first + AT_ONCE]
            with transaction.atomic():
                tags += [one.tag for one in some if take.finish(one.change, one.message)]
        return tags

    def _move(
        self, found: Sequence[Intercepted], alarms: Sequence[str], until: float
    ) -> tuple[list[int], BrokerError | None]:
        """The tags of what was published again, and why some have to wait for another reading."""
        tags: list[int] = []
        moved = [
            one
            for one in found
            if one.change.state in OPEN and one.change.kind != ChangeKind.CANCEL
        ]
        if not moved:
            return tags, None
        if alarms:
            return tags, Blocked(alarm_sentence(alarms))
        with publisher(self._broker.address, f"changes in {self._queue}") as channel:
            for number, (tag, change, message) in enumerate(moved):
                if time.monotonic() > until:
                    return tags, _TooSlow(self._took_long(f"{number} messages were changed"))
                self._pulse()
                publish = publish_in_place(change, message, channel)
                if publish is not None and take.finish(change, publish):
                    tags.append(tag)
        return tags, None

    def _took_long(self, progress: str) -> str:
        return (
            f"Reading “{self._queue}” took longer than {LONGEST_READING_SECONDS:.0f} s. "
            f"{progress}. The worker continues in a minute."
        )

    def _end_late(self, rows: QuerySet[ScheduledChange], why: str) -> None:
        """End the changes that are due by now: their messages were delivered, or taken out before a
        kill.
        """
        late = rows.filter(due_at__lt=timezone.now())
        self._end(late.filter(state__in=OPEN), why)
        late.filter(state=ChangeState.DONE, is_settled=False).update(
            is_settled=True, may_be_duplicated=True, error=_DOUBTFUL
        )

    def _end(self, rows: QuerySet[ScheduledChange], why: str) -> None:
        rows.filter(state=ChangeState.PUBLISHING).update(may_be_duplicated=True)
        rows.update(state=ChangeState.MISSED, error=why, ended_at=timezone.now())

    def _pulse(self) -> None:
        """Raises Stopped when another has it, Ending when the worker ends."""
        self._lease.pulse(0, 0)
        self._alive()
        if self._stop.is_set():
            raise work.Ending
