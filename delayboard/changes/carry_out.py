"""Carrying out the changes of an interception beside its forwarder, on a thread of its own.

Database and management API take milliseconds, or seconds where they are slow. The forwarder waits
for neither of them: it passes each changed message to this thread, and acknowledges it only after
this thread has stored that the message is taken out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import NamedTuple, TypeVar

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from delayboard.changes import take
from delayboard.changes.check import HORIZON
from delayboard.changes.copies import publish_copies, publish_in_place
from delayboard.changes.request import SelectedMessages
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from delayboard.models.scheduled_change import OPEN
from topology import audit, work
from topology.broker.amqp.pipeline import publisher
from topology.broker.management.client import Management
from topology.message import Message, Publish
from topology.models import Topology
from topology.operations.answers import TapCheck, find_known
from topology.transfer import interception as objects

REFRESH_SECONDS = 0.5
# Seconds between two checks for a foreign binding of the queue, where programs bind it.
WATCH_SECONDS = 0.25
# Seconds until the worker has all that was routed while the queue was bound again.
DOUBT_SECONDS = 1.0
# Seconds between two publishes of rescheduled messages: each takes a connection and a reading of
# the virtual host, while other messages pass (DECISIONS.md, 2026-11-26).
GATHER_SECONDS = 0.5
# Age of the changes, in seconds, above which nothing is forwarded: one may be requested just before
# the due time (check.SHORTEST_NOTICE), and must be known by then.
FRESH_SECONDS = 2.0
_T = TypeVar("_T")


class Intercepted(NamedTuple):
    """A message that is changed, and the tag of its delivery."""

    tag: int
    change: ScheduledChange
    message: Message


class Outcome(NamedTuple):
    """Whether the message is taken out; if not, it goes on as it came."""

    intercepted: Intercepted
    is_taken: bool


class Executor:
    """Renews the lease, reads what is requested, and carries changes out until the block ends.

    The forwarder sets `is_quiet`, `is_released`, `problem` and `counts`, and reads the rest. What
    goes wrong here is raised by `check`, on the forwarder's thread.
    """

    def __init__(self, session: Session, management: Management) -> None:
        self._session = session
        self._management = management
        self._row = session.row
        self._opened_at = self._loaded_at = time.monotonic()
        self.tombstones = take.Tombstones(self._row.changes.all())
        self.outcomes: deque[Outcome] = deque()
        self.is_quiet = False
        self.is_released = self._row.state == InterceptionState.ENDING
        self.problem = ""
        self.counts = dict.fromkeys(("passed", "taken", "overtaken"), 0)
        self.is_wanted = True
        self.rejects = False
        self._written = dict(self.counts)
        self._refresh_at = 0.0
        self._watch_at = 0.0
        topologies = Topology.objects.filter(pk__in=self._row.changes.values("topology"))
        is_bound_again = any(one.pattern.binds_again(one.parsed) for one in topologies)
        self._watch_seconds = WATCH_SECONDS if is_bound_again else REFRESH_SECONDS
        # Since the last look: the changes whose messages came, and what was counted as passed.
        self._came: deque[int] = deque()
        self._passed = 0
        self._doubtful_until = 0.0
        self._given: deque[Intercepted] = deque()
        self._copies: deque[Intercepted] = deque()
        self._moved: list[Intercepted] = []
        self._move_at = 0.0
        self._wake, self._ending = Event(), Event()
        self._error: BaseException | None = None

    def carry_out(self, intercepted: Intercepted) -> None:
        """Carry out a change; its outcome comes into `outcomes`. A message that came once more gets
        the outcome of the first.
        """
        taken_changes, pk = self.tombstones.taken_changes, intercepted.change.pk
        self._came.append(pk)
        (self._copies if pk in taken_changes else self._given).append(intercepted)
        taken_changes.add(pk)
        self._wake.set()

    @property
    def is_fresh(self) -> bool:
        """Whether the changes were read within the last two seconds."""
        return time.monotonic() - self._loaded_at < FRESH_SECONDS

    @property
    def is_doubtful(self) -> bool:
        """Whether what comes now may have come to the queue past the interception too."""
        return time.monotonic() < self._doubtful_until

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._carry_out()
                if time.monotonic() >= self._watch_at:
                    self._watch()
                if time.monotonic() >= self._refresh_at:
                    self._refresh()
                at = min(self._refresh_at, self._watch_at)
                at = min(at, self._move_at) if self._moved else at
                self._wake.wait(max(0.0, at - time.monotonic()))
                self._wake.clear()
        except BaseException as error:
            self._error = error
        finally:
            connection.close()

    def end(self) -> None:
        self._ending.set()
        self._wake.set()

    def write_counts(self) -> None:
        now = dict(self.counts)
        more = {name: F(name) + n - self._written[name] for name, n in now.items()}
        if now != self._written:
            Interception.objects.filter(pk=self._row.pk).update(**more)
        self._written = now

    def _refresh(self) -> None:
        self._session.step()
        self._session.report(self.problem)
        # Not after the copies, which may take long: an original that is not selected comes too.
        self._check()
        publish_copies(self._row, self._pulse)
        # After a broker came back, its queues first find out that their former consumer is gone.
        if self.is_quiet and time.monotonic() > self._opened_at + take.GRACE.total_seconds():
            take.abandon(
                self._row.changes.all(),
                "The message did not reach the intercept queue. RabbitMQ may have delivered it.",
            )
        self._reload()
        self.write_counts()
        until = timezone.now() + HORIZON
        self.is_wanted = self._row.changes.filter(state__in=OPEN, due_at__lte=until).exists()
        self._refresh_at = time.monotonic() + REFRESH_SECONDS

    def _pulse(self) -> None:
        if time.monotonic() >= self._watch_at:
            self._watch()
        self._session.step()
        if time.monotonic() - self._loaded_at > REFRESH_SECONDS:
            self._reload()

    def _reload(self) -> None:
        now = time.monotonic()
        self._select()
        self.tombstones.reload()
        self._loaded_at = now

    def _watch(self) -> None:
        """Somebody who bound the queue again has its messages take both ways: end that at once, and
        report what came meanwhile.
        """
        self._watch_at = time.monotonic() + self._watch_seconds
        intercepted, management = self._session.objects, self._management
        is_back = not self.is_released and objects.is_back(intercepted, management)
        if is_back:
            # The queue may be a new one, to which only this binding leads.
            objects.begin(intercepted, management)
        came, passed = _take_all(self._came), self.counts["passed"]
        if is_back or self.is_doubtful:
            self._report(came, passed - self._passed, is_back=is_back)
        self._passed = passed
        if is_back:
            self._doubtful_until = time.monotonic() + DOUBT_SECONDS

    def _report(self, came: Sequence[int], passed: int, *, is_back: bool) -> None:
        now = timezone.now()
        if is_back:
            Interception.objects.filter(pk=self._row.pk).update(bound_again_at=now)
        ScheduledChange.objects.filter(pk__in=came).update(
            may_be_duplicated=True,
            error=f"Another program bound the queue again at about {now:%H:%M:%S} UTC, so RabbitMQ "
            "may have delivered the message unchanged too.",
        )
        if is_back or came or passed:
            audit.record(
                None,
                "queue bound again by others",
                broker=self._row.broker,
                what=self._row.queue,
                details={"changes": sorted(came), "other messages": passed},
            )

    def _check(self) -> None:
        """Where the queue was deleted, or can refuse messages, every message waits in the intercept
        queue.
        """
        intercepted, management = self._session.objects, self._management
        # What a full queue refuses, levels try again only after minutes, and whatever is behind it.
        self.rejects = objects.rejects_publishes(intercepted, management)
        self._select(is_for_all=self.rejects or not objects.leads_on(intercepted, management))

    def _select(self, *, is_for_all: bool = False) -> None:
        missing = self._session.selection.missing(is_for_all=is_for_all)
        objects.lead(self._session.objects, missing, self._management)

    def _carry_out(self) -> None:
        # Taken first: the first message of each is then among those that are given, or before.
        copies = _take_all(self._copies)
        given = _take_all(self._given)
        self._moved += [one for one in given if _is_moved(one.change)]
        others = [one for one in given if not _is_moved(one.change)]
        if others:
            with transaction.atomic():
                ended = [Outcome(one, take.finish(one.change, one.message)) for one in others]
            # Not before the commit: an outcome is acknowledged.
            self.outcomes.extend(ended)
        if self._moved and (time.monotonic() >= self._move_at or self._is_due_again()):
            moved, self._moved = self._moved, []
            self._publish_again(moved)
            self._move_at = time.monotonic() + GATHER_SECONDS
        waiting = {one.change.pk for one in self._moved}
        for copy in copies:
            if copy.change.pk in waiting:
                self._copies.append(copy)
            else:
                self.outcomes.append(Outcome(copy, copy.change.state == ChangeState.DONE))

    def _is_due_again(self) -> bool:
        """Whether one is rescheduled to so soon that it would come late."""
        until = timezone.now() + timedelta(seconds=GATHER_SECONDS)
        dues = (one.change.new_due_at for one in self._moved)
        return any(due_at is not None and due_at < until for due_at in dues)

    def _publish_again(self, moved: Sequence[Intercepted]) -> None:
        """Each is begun in the database first. Raises OutcomeUnknown, and then they come again."""
        published = []
        with publisher(self._row.broker.address, "rescheduled messages") as channel:
            for one in moved:
                # Many take longer than a lease.
                if time.monotonic() > self._loaded_at + REFRESH_SECONDS:
                    self._pulse()
                published.append((one, publish_in_place(one.change, one.message, channel)))
        check = TapCheck(self._management, find_known(self._row.broker))
        for one, publish in published:
            self.outcomes.append(Outcome(one, publish is not None and _end(one, publish, check)))


@contextmanager
def executing(session: Session) -> Iterator[Executor]:
    """An executor for the length of a block."""
    # Its own: a session is for one thread.
    with Management(session.row.broker.address) as management:
        executor = Executor(session, management)
        thread = Thread(target=executor.run, name=f"changes of {session.row.queue}", daemon=True)
        thread.start()
        try:
            yield executor
        finally:
            executor.end()
            thread.join()
            executor.write_counts()


def _take_all(given: deque[_T]) -> list[_T]:
    """What is there now: the forwarder adds more meanwhile."""
    return [given.popleft() for _ in range(len(given))]


def _is_moved(change: ScheduledChange) -> bool:
    return change.kind == ChangeKind.RESCHEDULE and not change.is_copied


def _end(moved: Intercepted, publish: Publish, check: TapCheck) -> bool:
    """A tap of ours confirms what no real queue takes: the message itself goes on then."""
    if why := check.explain_loss(publish):
        take.fail(moved.change, why)
        return False
    return take.finish(moved.change, publish)


class Session:
    """One worker's time with an interception, under its lease."""

    def __init__(
        self, row: Interception, lease: work.Lease, stop: Event, alive: Callable[[], None]
    ) -> None:
        self.row = row
        self.lease = lease
        self.stop = stop
        self.objects = row.objects_of_broker
        self.selection = SelectedMessages(row)
        self._alive = alive
        self._reported = row.work.error

    def step(self) -> None:
        """Raises Stopped when another has it: then nothing more may be done."""
        self.lease.pulse(0, 0)
        self._alive()

    def set_state(self, state: InterceptionState) -> None:
        self.step()
        Interception.objects.filter(pk=self.row.pk).update(state=state)
        self.row.state = state

    def report(self, error: str) -> None:
        """Show what keeps the messages waiting; "" when nothing does."""
        if error != self._reported:
            self._reported = error
            self.lease.report(error)
