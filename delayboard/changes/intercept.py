"""Carrying an interception out: one worker at a time, from whatever step the last one left.

The row says what is being done before the broker is asked for it, and every step may be repeated
(topology/transfer/interception.py). Meanwhile messages are forwarded in order (forward.py), and
those that are changed are written down before they are acknowledged (carry_out.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from delayboard.changes import take
from delayboard.changes.carry_out import Session, executing
from delayboard.changes.check import HORIZON, LEAD, known_point
from delayboard.changes.copies import publish_copies
from delayboard.changes.forward import PREFETCH, WINDOW, Forwarder
from delayboard.changes.point import NoQueue, Unchangeable, exit_of
from delayboard.changes.request import begins_at, opens_at
from delayboard.models import Interception, InterceptionState, ScheduledChange
from delayboard.models.scheduled_change import OPEN, UNDOABLE
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import Answer, pipeline
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import ReadOnly, Work, WorkState
from topology.operations.answers import NackCheck
from topology.transfer import interception as objects
from topology.transfer.move import move

CHECK_SECONDS = 0.5
# Time before the first due time at which messages are intercepted at the latest.
SETTLE_MARGIN = timedelta(seconds=1.5)
# The broker reports what a queue holds every five seconds: twice nothing means nothing.
REPORT_SECONDS = 6.0


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do what is to be done for an interception, and return the work until it is due again.

    Raises Stopped, and BrokerError for the worker to show: calling again goes on at once.
    """
    row = Interception.objects.select_related("broker", "work").get(work=claimed)
    lease = work.lease_of(claimed)
    session = _Interception(row, lease, stop, alive)
    try:
        session.run()
    except ReadOnly:
        raise
    except BrokerError as error:
        lease.give_back(str(error), after=timedelta(0))
        raise
    session.leave()


class _Interception(Session):
    """The steps of an interception, from whichever the row names."""

    def run(self) -> None:
        """Until nothing is due soon and the bindings are as they were, or it shall stop."""
        row = self.row
        if row.state == InterceptionState.WAITING:
            take.abandon(
                row.changes.all(),
                "No worker intercepted the message in time. RabbitMQ delivered it unchanged.",
            )
            at = opens_at(row)
            # A message whose copy may be published would come as well, were it not intercepted.
            begun = row.changes.filter(state__in=OPEN).exclude(UNDOABLE)
            if at is not None and not begun.exists():
                work.refuse_beginning(row.work)
            if at is None or at > timezone.now():
                publish_copies(row, self.step)
                return
        with Management(row.broker.address) as management:
            management.before_change = self.step
            # One that ends begins again for a change that is due before the end.
            is_ending = row.state == InterceptionState.ENDING and not self._due_changes().exists()
            is_closed = row.state in (InterceptionState.WAITING, InterceptionState.ENDING)
            if is_closed and not is_ending and not self._is_point(management):
                return
            # One that died before it released left messages, which the next ones would overtake.
            if not is_ending or not objects.is_released(self.objects, management):
                self.set_state(InterceptionState.BEGINNING)
                rejects = objects.rejects_publishes(self.objects, management)
                taken = self.selection.missing(is_for_all=rejects)
                try:
                    objects.begin(self.objects, management, taken, settle=self._settle)
                except objects.NoBinding as error:
                    if not self._is_abandoned(management, error):
                        raise
                    return
                # Requested meanwhile, when there was nothing to be led to.
                objects.lead(self.objects, self.selection.missing(), management)
                self.set_state(InterceptionState.OPEN)
            else:
                objects.release(self.objects, management)
            # Where it is opened late, no message comes between its copy and its tombstone.
            publish_copies(row, self.step)
            self._forward(management)
            if self.stop.is_set():
                return
            objects.restore(self.objects, management)
            if self._is_settled(management):
                objects.remove(self.objects, management)
                self.set_state(InterceptionState.WAITING)

    def _is_abandoned(self, management: Management, error: BrokerError) -> bool:
        """Whether no message can come any more, as after the topology was deleted."""
        changes = self.row.changes.all()
        take.abandon(changes, f"The message was not intercepted. {error}")
        if changes.filter(state__in=OPEN).exists():
            return False
        # One that does not exist has no depth.
        if any(live_depths(self.row.broker.address, [self.objects.name]).values()):
            return False
        objects.remove(self.objects, management)
        self.set_state(InterceptionState.WAITING)
        return True

    def leave(self) -> None:
        """Let another go on at once, or wait for the next change, or close it for good."""
        with transaction.atomic():
            # Whoever requests a change locks the row too, and wakes only who has given it back.
            Interception.objects.select_for_update().get(pk=self.row.pk)
            now = timezone.now()
            is_waiting = self.row.state == InterceptionState.WAITING
            at = begins_at(self.row) if is_waiting else now
            if at is not None:
                self.lease.give_back("", after=max(timedelta(0), at - now))
            elif self.lease.end(WorkState.DONE):
                rows = Interception.objects.filter(pk=self.row.pk)
                rows.update(state=InterceptionState.CLOSED)

    def _due_changes(self) -> QuerySet[ScheduledChange]:
        """The open changes for which messages are intercepted now."""
        return self.row.changes.filter(state__in=OPEN, due_at__lte=timezone.now() + HORIZON)

    def _settle(self) -> None:
        """Wait until the queue survives a kill of the broker, or until a change is due soon."""
        at = opens_at(self.row)
        remaining = (at + LEAD - SETTLE_MARGIN - timezone.now()).total_seconds() if at else 0.0
        self.stop.wait(max(0.0, min(remaining, objects.SETTLE_SECONDS)))

    def _is_point(self, management: Management) -> bool:
        """Whether the messages still take this one path; else their changes fail.

        Somebody may have bound the queue in another way since they were requested: then each
        message could arrive past the interception too.
        """
        snapshot, is_one = observe(management).without_interceptions(), False
        for change in self._due_changes().select_related("topology"):
            try:
                topology = change.topology
                exit_point = exit_of(topology.pattern, topology.parsed, change.destination)
                point = known_point(self.row.broker, snapshot, *exit_point)
            except NoQueue:
                # To begin says what is missing, and is tried again.
                return True
            except Unchangeable as error:
                take.fail(change, str(error))
                continue
            if point.bindings == self.objects.bindings:
                is_one = True
            else:
                take.fail(change, "The bindings of the queue were changed since the request.")
        return is_one

    def _forward(self, management: Management) -> None:
        address = self.row.broker.address
        own = f"forwarder of {self.row.queue}"
        with (
            executing(self) as executor,
            pipeline(address, own) as publishing,
            Consumer(
                address, self.objects.name, prefetch=PREFETCH, is_ordered=True, in_thread=False
            ) as taking,
        ):
            forwarder = Forwarder(self, management, publishing, taking, executor)
            nacks = NackCheck(self.row.broker)

            def explain_nack(answer: Answer) -> Answer:
                with taking.attended():
                    return nacks.settle(answer)

            move(
                forwarder,
                publishing,
                window=WINDOW,
                is_stopping=forwarder.is_over,
                turn=forwarder.turn,
                idle_seconds=0,
                wait=forwarder.wait,
                explain_nack=explain_nack,
            )

    def _is_settled(self, management: Management) -> bool:
        """Whether the intercept queue was reported empty for long enough to be deleted.

        Not where it is needed again for a change that was requested meanwhile.
        """
        began = empty_since = time.monotonic()
        while not (self.stop.is_set() or self._due_changes().exists()):
            now = time.monotonic()
            if management.queue(self.objects.name).get("messages", 1):
                empty_since = now
            if now - empty_since > REPORT_SECONDS:
                # What the broker reports is as old as its statistics interval.
                depths = live_depths(self.row.broker.address, [self.objects.name])
                return not any(depths.values())
            if now == empty_since and now - began > REPORT_SECONDS:
                return False
            self.step()
            self.stop.wait(CHECK_SECONDS)
        return False
