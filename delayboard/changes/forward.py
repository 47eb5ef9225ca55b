"""Forwarding what an interception holds: in order and confirmed, without what is changed.

Several messages are on the way at once on one channel, and the queue takes them in the order in
which they are published. Each is acknowledged when it is confirmed. A kill repeats at most those
that had no ack; what is delivered again is marked.

A refused message stops the others: none is published until all that are on the way have their
answers. Then the refused ones are published again, one at a time, before any other. What was on
the way behind the first of them
- is refused too where the queue is gone: only this forwarder binds it again, and not before;
- is nothing where the queue refuses messages while it is full: it gets one at a time;
- may have been taken where a queue's process died, or where a policy changed within half a second.
Then it came before the refused message, which `overtaken` counts.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypeAlias

from delayboard.changes.carry_out import Executor, Intercepted, Session
from delayboard.models import ChangeState, InterceptionState
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import CONFIRMED, Answer, Pipeline
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, mark_doubled
from topology.message import Message, Publish
from topology.transfer import interception as objects
from topology.transfer.move import Step
from topology.transfer.queue_source import QueueSource, Taken

# Messages that a kill can double: half are in flight, half are confirmed and not acknowledged.
WINDOW = 50
PREFETCH = 100
# Seconds without a message after which the binding is restored, so that no younger one overtakes.
QUIET_SECONDS = 0.2
# Seconds after which it is restored without such a pause, when the intercept queue is empty.
PATIENCE_SECONDS = 600.0
# Seconds until a refused message is published again.
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.05
# What a message is published as; None where nothing is, because it is taken out.
Sent: TypeAlias = Taken[Publish | None]


class Forwarder:
    """What the loop asks: what becomes of a message, and whether it is over."""

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
            return self._is_ended()
        return self._is_released and self._is_idle() and self._is_empty()

    def turn(self) -> None:
        """Check the outcome of the changes, and release when nothing is left to do."""
        executor, now = self._executor, time.monotonic()
        executor.check()
        self._see_outcomes()
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

    def _see_outcomes(self) -> None:
        """Acknowledge what is taken out, and forward what is not."""
        outcomes = self._executor.outcomes
        while outcomes:
            (tag, change, message), is_taken = outcomes.popleft()
            if is_taken:
                self._queue.settle([(Taken(tag, None), CONFIRMED)])
            else:
                publish = self._onward(message)
                # What should have taken its place may have arrived.
                self._publish_again(tag, _marked(publish) if change.may_be_duplicated else publish)

    def _is_ended(self) -> bool:
        """Whether all that has come is forwarded: what goes back comes again, marked.

        What the queue refuses is not waited for.
        """
        if self._again_at > 0:
            return True
        if not self._is_ending:
            self._is_ending = True
            self._taking.end()
        return self._is_idle()

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
        """As it came; without another's user id, which the broker would refuse."""
        properties = message.properties
        if message.redelivered or self._executor.is_doubtful:
            properties = mark_doubled(properties)
        if properties.user_id not in (None, self._row.broker.username):
            with suppress(FieldError):
                properties = edit_properties(properties, drop=frozenset({"user_id"}))
        return Publish(self._objects.out, message.routing_key, properties, message.body)


def _marked(publish: Publish) -> Publish:
    return replace(publish, properties=mark_doubled(publish.properties))
