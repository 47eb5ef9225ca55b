"""Carrying an interception out: one worker at a time, from whatever step the last one left.

The row says what is being done before the broker is asked for it, and every step may be repeated
(topology/transfer/interception.py). A message is forwarded confirmed and mandatory and then
acknowledged, one at a time, so that the order stays and a kill repeats one message at most; one
that is changed is written down before it is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event
from typing import Literal, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delayboard.changes import take
from delayboard.changes.check import known_point
from delayboard.changes.copies import publish_copies
from delayboard.changes.limits import HORIZON
from delayboard.changes.outgoing import lost_to_taps, replacement
from delayboard.changes.point import NoQueue, Unchangeable, exit_of
from delayboard.changes.request import begins_at, opens_at
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from delayboard.models.scheduled_change import OPEN
from topology import work
from topology.broker.amqp.deliveries import Arrival
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.fast_consumer import Intake, intake
from topology.broker.amqp.pipeline import Answer, Pipeline, pipeline
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties
from topology.message import Message, Properties, Publish
from topology.models import Work, WorkState
from topology.patterns.pattern import ParamsError
from topology.transfer import interception as objects
from topology.transfer.move import Step, move
from topology.transfer.queue_source import QueueSource, Taken

PREFETCH = 50
REFRESH_SECONDS = 0.5
# The binding is restored in a pause of so many seconds, so that no younger message overtakes.
QUIET_SECONDS = 0.2
# Where none comes for so long, as soon as the intercept queue is empty.
PATIENCE_SECONDS = 600.0
# So long a refused message waits until it is published again (seconds).
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.05
# The broker reports what a queue holds every five seconds: twice nothing means nothing.
REPORT_SECONDS = 6.0
# What a quorum queue adds to a message that it delivers again.
_ADDED = frozenset({"x-delivery-count", "x-acquired-count"})


class Replaced(NamedTuple):
    """A change, what is published in place of its message, and the message."""

    change: ScheduledChange
    publish: Publish
    message: Message


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do what is to be done for an interception, and say when to come again.

    Raises BrokerError where the broker does not let it go on; calling again goes on.
    """
    row = Interception.objects.select_related("broker", "work").get(work=claimed)
    lease = work.lease_of(claimed)
    session = _Session(row, lease, stop, alive)
    try:
        session.run()
    except work.Stopped:
        return
    except BrokerError as error:
        lease.give_back(str(error), after=timedelta(0))
        raise
    session.leave()


class _Session:
    def __init__(
        self, row: Interception, lease: work.Lease, stop: Event, alive: Callable[[], None]
    ) -> None:
        self._row = row
        self._lease = lease
        self._stop = stop
        self._alive = alive
        self._objects = row.objects_of_broker
        self._reported = row.work.error

    def run(self) -> None:
        """Until nothing is due soon and the binding is as it was, or it shall stop."""
        row = self._row
        if row.state == InterceptionState.WAITING:
            take.give_up(
                row.changes.all(),
                "No worker intercepted the message in time. RabbitMQ delivered it unchanged.",
            )
            at = opens_at(row)
            if at is None or at > timezone.now():
                publish_copies(row, self._step)
                return
        with Management(row.broker.address) as management:
            if row.state == InterceptionState.WAITING and not self._is_point(management):
                return
            # One that died before it released left messages, which the next ones would overtake.
            is_ending = row.state == InterceptionState.ENDING
            if not is_ending or not objects.is_released(self._objects, management):
                self._set(InterceptionState.BEGINNING, opened_at=timezone.now())
                objects.begin(self._objects, management, self._step)
                self._set(InterceptionState.OPEN)
            else:
                objects.release(self._objects, management, self._step)
            # Where it is opened late, no message comes between its copy and its tombstone.
            publish_copies(row, self._step)
            self._forward(management)
            if self._stop.is_set():
                return
            objects.restore(self._objects, management, self._step)
            if self._is_settled(management):
                objects.remove(self._objects, management, self._step)
                self._set(InterceptionState.WAITING)

    def leave(self) -> None:
        """Let another go on at once, or wait for the next change, or close it for good."""
        with transaction.atomic():
            # Whoever requests a change locks the row too, and wakes only who has given it back.
            Interception.objects.select_for_update().get(pk=self._row.pk)
            now = timezone.now()
            is_waiting = self._row.state == InterceptionState.WAITING
            at = begins_at(self._row) if is_waiting else now
            if at is not None:
                self._lease.give_back("", after=max(timedelta(0), at - now))
            elif self._lease.end(WorkState.DONE):
                rows = Interception.objects.filter(pk=self._row.pk)
                rows.update(state=InterceptionState.CLOSED)

    def _is_point(self, management: Management) -> bool:
        """Whether the messages still pass this one binding; else their changes fail.

        Somebody may have bound the queue in a second way since they were requested: then each
        message would arrive past the interception too.
        """
        snapshot, soon = observe(management), timezone.now() + HORIZON
        changes = self._row.changes.filter(state__in=OPEN, due_at__lte=soon)
        is_one = False
        for change in changes.select_related("topology"):
            try:
                topology = change.topology
                way_out = exit_of(topology.kind, topology.parsed, change.destination)
                point = known_point(self._row.broker, snapshot, *way_out)
            except NoQueue:
                # To begin says what is missing, and is tried again.
                return True
            except Unchangeable as error:
                take.fail(change, str(error))
                continue
            if point.binding == self._objects.binding:
                is_one = True
            else:
                take.fail(change, "The bindings of the queue were changed since the request.")
        return is_one

    def _forward(self, management: Management) -> None:
        address = self._row.broker.address
        name = self._objects.name
        with (
            pipeline(address, f"forwarder of {self._row.queue}") as publishing,
            intake(address, name, prefetch=PREFETCH) as taking,
        ):
            forwarding = _Forwarding(self, management, publishing, taking)
            move(
                forwarding,
                publishing,
                window=1,
                is_stopping=forwarding.is_over,
                turn=forwarding.turn,
                idle_seconds=0,
            )
        forwarding.write_counts()

    def _is_settled(self, management: Management) -> bool:
        """Whether the intercept queue was reported empty for long enough to be deleted."""
        began = empty_since = time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            if management.queue(self._objects.name).get("messages", 1):
                empty_since = now
            if now - empty_since > REPORT_SECONDS:
                # What the broker reports is seconds old, or older where it was told so.
                depths = live_depths(self._row.broker.address, [self._objects.name])
                return not any(depths.values())
            if now == empty_since and now - began > REPORT_SECONDS:
                return False
            self._step()
            self._stop.wait(REFRESH_SECONDS)
        return False

    def pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def report(self, error: str) -> None:
        """Show what keeps the messages waiting; "" when nothing does."""
        if error != self._reported:
            self._reported = error
            self._lease.report(error)

    def _step(self) -> None:
        """Raises Stopped when another has it: then nothing more may be done."""
        self._lease.pulse(0, 0)
        self._alive()

    def _set(self, state: InterceptionState, **values: object) -> None:
        self._step()
        Interception.objects.filter(pk=self._row.pk).update(state=state, **values)
        self._row.state = state


class _Forwarding:
    """What the loop asks: what becomes of a message, and whether it is over."""

    def __init__(
        self,
        session: _Session,
        management: Management,
        publishing: Pipeline[object],
        taking: Intake,
    ) -> None:
        self._session = session
        self._row = session._row
        self._objects = session._objects
        self._management = management
        self._publishing = publishing
        self._taking = taking
        self._tombstones = take.Tombstones(self._row.changes.all())
        self._is_released = self._row.state == InterceptionState.ENDING
        self._refresh_at = 0.0
        self._arrived = time.monotonic()
        self._number = 0
        self._done_since: float | None = None
        self._counts = {"passed": 0, "taken": 0, "overtaken": 0}
        self._queue: QueueSource[Replaced | None] = QueueSource(
            taking, self._decide, self._settled, prefetch=PREFETCH
        )
        self._sent: Step[Taken[Replaced | None]] | None = None
        self._again_at = 0.0
        self._is_ending = False

    @property
    def is_exhausted(self) -> bool:
        return False

    def take(self, room: int) -> Sequence[Step[Taken[Replaced | None]]]:
        """The next message, or once more the one that was refused: nothing passes it."""
        if self._sent is not None:
            if time.monotonic() > self._again_at:
                return [self._sent]
            self._taking.attend()
            self._session.pause(PAUSE_SECONDS)
            return []
        steps = self._queue.take(room)
        self._sent = next(iter(steps), None)
        return steps

    def settle(self, answers: Sequence[tuple[Taken[Replaced | None], Answer]]) -> None:
        """Acknowledge what was confirmed; what was refused is tried again, as it came."""
        for taken, answer in answers:
            assert self._sent is not None
            if taken.mark is not None and answer.kind == "confirmed":
                answer = self._look_behind_taps(taken.mark.publish, answer)
            if answer.kind == "confirmed":
                self._sent, self._again_at = None, 0.0
                self._queue.settle([(taken, answer)])
                self._session.report("")
            else:
                self._retry(taken, answer)

    def _look_behind_taps(self, publish: Publish, answer: Answer) -> Answer:
        """A tap of ours confirms what no real queue takes: the message itself goes on then."""
        why = lost_to_taps(publish, self._management)
        return Answer("returned", f"No queue receives the message: {why}.") if why else answer

    def _retry(self, taken: Taken[Replaced | None], answer: Answer) -> None:
        self._again_at = time.monotonic() + RETRY_SECONDS
        assert self._sent is not None
        if taken.mark is not None and answer.kind != "unknown":
            take.fail(taken.mark.change, answer.error)
            self._sent = Step(Taken(taken.tag, None), self._onward(taken.mark.message))
        elif answer.kind == "returned":
            self._repair()
        elif answer.kind != "unknown":
            self._session.report(_refusal(answer, self._row.queue))

    def _repair(self) -> None:
        """The queue was deleted, and with it the bindings to it: when it is back, bind it again."""
        change = objects.release if self._is_released else objects.begin
        try:
            change(self._objects, self._management, self._session._step)
        except NotFound as error:
            self._session.report(str(error))

    def is_over(self) -> bool:
        """Asked to stop, or released and empty."""
        if self._session._stop.is_set():
            return self._is_ended()
        return self._is_released and self._is_idle() and self._is_empty()

    def _is_ended(self) -> bool:
        """Whether all that has come is forwarded: what a quorum queue gets back may change places.

        What the queue refuses is not waited for.
        """
        if not self._is_ending:
            self._is_ending = True
            self._taking.end()
        return self._again_at > 0 or self._is_idle()

    def turn(self) -> None:
        """Renew the lease, read what was requested, and release when nothing is left to do."""
        now = time.monotonic()
        if now > self._refresh_at:
            self._session._step()
            publish_copies(self._row, self._session._step)
            self._settle_taken()
            self._give_up_missed()
            self._tombstones.reload()
            self.write_counts()
            self._note_bound_again()
            if not self._is_wanted():
                self._done_since = self._done_since or now
            else:
                self._done_since = None
            # Where broker and database are slow, forwarding has the greater part of the time.
            taken = time.monotonic() - now
            self._refresh_at = time.monotonic() + max(REFRESH_SECONDS, 3 * taken)
        if self._done_since is not None and not self._is_released and self._is_idle():
            is_quiet = now - self._arrived > QUIET_SECONDS
            is_late = now - self._done_since > PATIENCE_SECONDS
            if (is_quiet or is_late) and self._is_empty():
                self._release()

    def write_counts(self) -> None:
        changes = {name: F(name) + number for name, number in self._counts.items() if number}
        if changes:
            Interception.objects.filter(pk=self._row.pk).update(**changes)
        self._counts = dict.fromkeys(self._counts, 0)

    def _release(self) -> None:
        self._session._set(InterceptionState.ENDING)
        self._management.bind(self._objects.switch)
        self._is_released = True

    def _is_empty(self) -> bool:
        """Whether the queue is empty. What was on its way comes before the second answer."""
        return self._taking.depth() == 0 == self._taking.depth() and self._is_idle()

    def _is_idle(self) -> bool:
        return not self._queue.unsettled and not self._taking.waiting

    def _is_wanted(self) -> bool:
        soon = timezone.now() + HORIZON
        return self._row.changes.filter(state__in=OPEN, due_at__lte=soon).exists()

    def _settle_taken(self) -> None:
        """What was taken and acknowledged cannot come again, once the broker has the acks.

        What a broken connection put back comes first: it has passed by now.
        """
        if self._is_idle() or self._number > PREFETCH:
            taken = self._row.changes.filter(state=ChangeState.DONE, is_settled=False)
            if ids := list(taken.values_list("pk", flat=True)):
                self._taking.depth()
                ScheduledChange.objects.filter(pk__in=ids).update(is_settled=True)

    def _give_up_missed(self) -> None:
        if time.monotonic() - self._arrived > QUIET_SECONDS and self._is_idle():
            take.give_up(
                self._row.changes.all(),
                "The message did not reach the intercept queue. RabbitMQ may have delivered it.",
            )

    def _note_bound_again(self) -> None:
        """Somebody who bound the queue again has its messages take both ways."""
        if not self._is_released and objects.is_back(self._objects, self._management):
            Interception.objects.filter(pk=self._row.pk).update(bound_again_at=timezone.now())
            self._management.unbind(self._objects.binding)

    def _decide(self, arrival: Arrival) -> tuple[Publish, Replaced | None] | Literal["drop"] | None:
        self._arrived = time.monotonic()
        self._number += 1
        self._counts["overtaken"] += self._is_released
        message = arrival.message
        change = self._tombstones.find(message)
        if change is None:
            return self._onward(message), None
        if change.kind == ChangeKind.RESCHEDULE and not change.is_copied:
            return self._reschedule(change, message)
        if change.state == ChangeState.DONE or take.finish(change, message):
            self._counts["taken"] += 1
            return "drop"
        return self._onward(message), None

    def _reschedule(
        self, change: ScheduledChange, message: Message
    ) -> tuple[Publish, Replaced | None] | Literal["drop"]:
        if change.state == ChangeState.DONE:
            return "drop"
        try:
            declares, publish = replacement(change, message)
            self._publishing.declare(declares)
        except (ParamsError, FieldError, BrokerError) as error:
            take.fail(change, str(error))
            return self._onward(message), None
        if not take.begin(change):
            return self._onward(message), None
        return publish, Replaced(change, publish, message)

    def _settled(self, replaced: Replaced | None, answer: Answer) -> None:
        self._counts["passed" if replaced is None else "taken"] += 1
        if replaced is not None:
            take.finish(replaced.change, replaced.publish)

    def _onward(self, message: Message) -> Publish:
        """As it came; without another's user id, which the broker would refuse."""
        properties = message.properties
        is_foreign = properties.user_id not in (None, self._row.broker.username)
        if is_foreign or (message.redelivered and self._row.queue_type == "quorum"):
            properties = _without_additions(properties, is_foreign=is_foreign)
        return Publish(self._objects.out, message.routing_key, properties, message.body)


def _without_additions(properties: Properties, *, is_foreign: bool) -> Properties:
    try:
        return edit_properties(
            properties,
            drop_header=lambda name: name in _ADDED,
            drop=frozenset({"user_id"}) if is_foreign else frozenset(),
        )
    except FieldError:
        return properties


def _refusal(answer: Answer, queue: str) -> str:
    if answer.kind == "nacked":
        return (
            f"The queue “{queue}” refuses messages, so its intercepted messages wait. Check "
            "whether the queue is full."
        )
    return answer.error
