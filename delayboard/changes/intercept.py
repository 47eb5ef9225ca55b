"""Carrying an interception out: one worker at a time, from whatever step the last one left.

The row says what is being done before the broker is asked for it, and every step may be repeated
(topology/transfer/interception.py). Meanwhile messages are forwarded in order, and those that are
changed are written down before they are acknowledged (carry_out.py).
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Literal, TypeAlias

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from delayboard.changes import take
from delayboard.changes.carry_out import Executor, Intercepted, Session, executing
from delayboard.changes.check import HORIZON, LEAD, NoQueue, Unchangeable, exit_of, known_point
from delayboard.changes.copies import publish_copies
from delayboard.changes.request import begins_at, opens_at
from delayboard.models import ChangeState, Interception, InterceptionState, ScheduledChange
from delayboard.models.scheduled_change import OPEN, UNDOABLE
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import CONFIRMED, Answer, Pipeline, pipeline
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, mark_doubled
from topology.message import Message, Publish
from topology.models import ReadOnly, Work, WorkState
from topology.operations.answers import NackCheck
from topology.transfer import interception as objects
from topology.transfer.move import QueueSource, Step, Taken, move

CHECK_SECONDS = 0.5
# Time before the first due time at which messages are intercepted at the latest.
SETTLE_MARGIN = timedelta(seconds=1.5)
# Seconds after which an empty queue is empty: the broker reports every five seconds what it holds.
REPORT_SECONDS = 6.0
# Messages that a kill can double: half are in flight, half are confirmed and not acknowledged.
WINDOW = 50
PREFETCH = 100
# Seconds without a message after which the binding is restored, so that no younger one overtakes.
QUIET_SECONDS = 0.2
# Seconds after which the binding is restored without such a pause, when the intercept queue is
# empty.
PATIENCE_SECONDS = 600.0
# Seconds until a refused message is published again.
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.05
# A message, and what it is published as; None where it is only taken out.
Sent: TypeAlias = Taken[Publish | None]


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
        """Intercept until nothing is due soon and the bindings are as they were, or until it is
        stopped.
        """
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


class Forwarder:
    """What the loop asks: what becomes of a message, and whether it is over.

    Several messages are on the way at once on one channel, and the queue takes them in the order in
    which they are published. Each is acknowledged when it is confirmed. A kill repeats at most
    those that had no ack; what is delivered again is marked.

    A refused message stops the others: none is published until all that are on the way have their
    answers. Then the refused ones are published again, one at a time, before any other. What was on
    the way behind the first of them
    - is refused too where the queue is gone: only this forwarder binds it again, and not before;
    - is nothing where the queue refuses messages while it is full: it gets one at a time;
    - may have been taken where a queue's process died, or where a policy changed within half a
      second. Then it came before the refused message, which `overtaken` counts.
    """

    def __init__(
        self,
        session: Session,
        management: Management,
        publishing: Pipeline[Sent],
        taking: Consumer,
        executor: Executor,
    ) -> None:
        self._session = session
        self._row = session.row
        self._objects = session.objects
        self._management = management
        self._publishing = publishing
        self._taking = taking
        self._executor = executor
        self._is_released = executor.is_released
        self._arrived = time.monotonic()
        self._newest = 0
        self._done_since: float | None = None
        self._queue: QueueSource[Publish | None] = QueueSource(
            taking, self._decide, self._count, prefetch=PREFETCH
        )
        # What is published again before any other: tags, in order, and as what.
        self._refused: list[int] = []
        self._again: dict[int, Publish] = {}
        self._is_binding_lost = False
        self._again_at = 0.0
        self._is_ending = False

    @property
    def is_exhausted(self) -> bool:
        return False

    def take(self, room: int) -> Sequence[Step[Sent]]:
        """The next messages, or once more the first that was refused: nothing passes it."""
        is_single = bool(self._refused) or self._executor.rejects
        if is_single and self._publishing.in_flight:
            return []
        is_waiting = bool(self._refused) and time.monotonic() < self._again_at
        if is_waiting or not self._executor.is_fresh:
            self._taking.attend()
            self._session.stop.wait(PAUSE_SECONDS)
            return []
        if self._refused:
            if self._is_binding_lost and not self._bind_again():
                return []
            publish = self._again[self._refused[0]]
            return [Step(Taken(self._refused[0], publish), publish)]
        return self._queue.take(1 if is_single else room)

    def wait(self, seconds: float) -> float:
        """Wait for an answer, or for a message where one may follow those that are on the way."""
        is_single = bool(self._refused) or self._executor.rejects
        if is_single or self._queue.is_full or not self._executor.is_fresh:
            return seconds
        if not self._taking.waiting:
            self._publishing.wait_beside(self._taking, seconds)
        return 0.0

    def settle(self, answers: Sequence[tuple[Sent, Answer]]) -> None:
        """Acknowledge what was confirmed; what was refused is published again."""
        for taken, answer in answers:
            if answer.kind == "confirmed":
                self._confirm(taken.tag)
            elif answer.kind != "unknown":
                self._refuse(taken, answer)
        self._queue.settle([one for one in answers if one[1].kind == "confirmed"])

    def is_over(self) -> bool:
        """Asked to stop, or released and empty."""
        if self._session.stop.is_set():
            # Whether all that has come is forwarded: what goes back comes again, marked. What the
            # queue refuses is not waited for.
            if self._again_at > 0:
                return True
            if not self._is_ending:
                self._is_ending = True
                self._taking.end()
            return self._is_idle()
        return self._is_released and self._is_idle() and self._is_empty()

    def turn(self) -> None:
        """Check the outcome of the changes, and release when nothing is left to do."""
        executor, now = self._executor, time.monotonic()
        executor.check()
        # Acknowledge what is taken out, and forward what is not.
        outcomes = self._executor.outcomes
        while outcomes:
            (tag, change, message), is_taken = outcomes.popleft()
            if is_taken:
                self._queue.settle([(Taken(tag, None), CONFIRMED)])
            else:
                publish = self._onward(message)
                # What should have taken its place may have arrived.
                self._publish_again(tag, _marked(publish) if change.may_be_duplicated else publish)
        is_quiet = self._is_idle() and now - self._arrived > QUIET_SECONDS
        # A broker that is slow to deliver looks quiet while the queue still has messages.
        executor.is_quiet = is_quiet and (executor.is_quiet or self._is_empty())
        if executor.is_wanted:
            self._done_since = None
        elif self._done_since is None:
            self._done_since = now
        if self._done_since is not None and not self._is_released and self._is_idle():
            is_late = now - self._done_since > PATIENCE_SECONDS
            if (is_quiet or is_late) and self._is_empty():
                executor.is_released = True
                self._session.set_state(InterceptionState.ENDING)
                self._management.bind(self._objects.detour.switch)
                self._is_released = True

    def _confirm(self, tag: int) -> None:
        if tag in self._again:
            self._executor.counts["overtaken"] += tag < self._newest
            self._refused.remove(tag)
            del self._again[tag]
        self._newest = max(self._newest, tag)
        if not self._refused:
            self._again_at, self._executor.problem = 0.0, ""

    def _refuse(self, taken: Sent, answer: Answer) -> None:
        assert taken.mark is not None
        publish = taken.mark
        if answer.kind in ("refused", "nacked"):
            self._executor.problem = (
                f"The queue “{self._row.queue}” refuses messages, so its intercepted messages "
                f"wait. {answer.error}"
            )
            if answer.kind == "nacked":
                publish = _marked(publish)
        else:
            self._is_binding_lost = True
            if answer.kind == "failed":
                self._executor.problem = answer.error
        self._publish_again(taken.tag, publish)
        self._again_at = time.monotonic() + RETRY_SECONDS

    def _publish_again(self, tag: int, publish: Publish) -> None:
        if tag not in self._again:
            insort(self._refused, tag)
        self._again[tag] = publish

    def _bind_again(self) -> bool:
        """The queue was deleted, and with it the bindings to it: when it is back, bind it again."""
        change = objects.release if self._is_released else objects.begin
        try:
            change(self._objects, self._management)
        except NotFound as error:
            self._executor.problem = str(error)
            self._again_at = time.monotonic() + RETRY_SECONDS
            return False
        self._is_binding_lost = False
        return True

    def _is_empty(self) -> bool:
        """Whether the queue is empty. What was on its way comes before the second answer."""
        return self._taking.depth() == 0 == self._taking.depth() and self._is_idle()

    def _is_idle(self) -> bool:
        return not self._queue.unsettled and not self._taking.waiting

    def _decide(
        self, arrival: Delivery
    ) -> tuple[Publish, Publish | None] | Literal["drop", "later"]:
        self._arrived = time.monotonic()
        self._executor.counts["overtaken"] += self._is_released
        message = arrival.message
        change = self._executor.tombstones.find(message)
        if change is None:
            publish = self._onward(message)
            return publish, publish
        if change.state == ChangeState.DONE:
            return "drop"
        self._executor.carry_out(Intercepted(arrival.tag, change, message))
        return "later"

    def _count(self, publish: Publish | None, answer: Answer) -> None:
        self._executor.counts["taken" if publish is None else "passed"] += 1

    def _onward(self, message: Message) -> Publish:
        """The publish of a message as it came, without another's user id, which the broker would
        refuse.
        """
        properties = message.properties
        if message.redelivered or self._executor.is_doubtful:
            properties = mark_doubled(properties)
        if properties.user_id not in (None, self._row.broker.username):
            with suppress(FieldError):
                properties = edit_properties(properties, drop=frozenset({"user_id"}))
        return Publish(self._objects.out, message.routing_key, properties, message.body)


def _marked(publish: Publish) -> Publish:
    return replace(publish, properties=mark_doubled(publish.properties))
