"""The live queue of a replay straight through, as the source of a move that counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from delayboard.dead_letters.replay.move_queue.delivery_limit import explain_near_limit
from delayboard.dead_letters.replay.move_queue.outgoing_message import OutgoingMessages
from delayboard.dead_letters.replay.publish.outgoing import Unsendable
from delayboard.dead_letters.replay.publish.tap_check import TapCheck
from topology.broker.amqp.deliveries import Arrival
from topology.broker.amqp.fast_consumer import Intake
from topology.broker.amqp.pipeline import Answer
from topology.message import Publish
from topology.transfer.move import Step
from topology.transfer.queue_source import QueueSource, Taken
from topology.transfer.rate import RateLimiter

# What is confirmed at a tapped exchange is looked at when it is so much, or so old (seconds).
CHECKED_NUMBER = 250
CHECKED_SECONDS = 0.2
# What stays in the queue is held so long (seconds); after 30 minutes a broker closes the channel.
UNACKED_SECONDS = 1500.0
# Seconds without a message before the queue is checked for being empty.
EMPTY_SECONDS = 1.0
_REFUSED = ("returned", "refused", "failed")
_COUNTED = {
    "confirmed": "done",
    "returned": "returned",
    "refused": "failed",
    "failed": "failed",
    "nacked": "unknown",
}


@dataclass
class LiveQueueSource:
    """At most `remaining` messages. `counts` has their outcomes since they were consumed.

    `reserve` commits that further numbers are in use, and returns the highest. `limit` is the
    queue's delivery limit; when a message is near it, `costly` says so, and no more may be
    consumed.
    """

    intake: Intake
    deciding: OutgoingMessages
    check: Callable[[], TapCheck]
    limiter: RateLimiter
    reserve: Callable[[], int]
    remaining: InitVar[int]
    window: int
    prefetch: InitVar[int]
    number: int
    limit: int | None = None
    empty_seconds: float = EMPTY_SECONDS
    counts: Counter[str] = field(default_factory=Counter)
    error: str = ""
    costly: str = ""
    _is_empty: bool = False
    _answered: list[tuple[Taken[Publish], Answer]] = field(default_factory=list)
    _answered_at: float = 0.0
    _unknown: int = 0

    def __post_init__(self, remaining: int, prefetch: int) -> None:
        self._queue = QueueSource[Publish](
            self.intake, self._decide, self._count_answer, prefetch=prefetch, most=remaining
        )
        self._quiet_since = time.monotonic()
        self._reserved = self.number

    @property
    def is_exhausted(self) -> bool:
        """Whether all messages were consumed, or the queue is empty."""
        return self._queue.is_exhausted or self._is_empty

    @property
    def is_through(self) -> bool:
        """Nothing of it is left to do."""
        return self.is_exhausted and not (self._queue.unsettled or self._unknown)

    @property
    def is_unacked_long(self) -> bool:
        """Whether what stays has been held long enough to be given back."""
        return self._queue.unacked_seconds > UNACKED_SECONDS

    @property
    def unsure(self) -> int:
        """How many were on the way and go back, which may have been published."""
        refused = sum(answer.kind in _REFUSED for _, answer in self._answered)
        return self._queue.unsettled + self._unknown - refused

    def take(self, room: int) -> Sequence[Step[Taken[Publish]]]:
        """The next ones, as the rate allows. Raises BrokerError, and what `reserve` raises."""
        self.flush(due_only=True)
        most = min(room, self.window - self._queue.unsettled, self.limiter.allows(time.monotonic()))
        if most <= 0:
            return []
        while self._reserved - self.number < most:
            self._reserved = self.reserve()
        steps = self._queue.take(most)
        self.limiter.take(len(steps))
        self._check_empty(bool(steps))
        return steps

    def attend(self) -> None:
        """Keep the connection of the queue alive, and send acks. Raises BrokerError."""
        self.intake.attend()

    def settle(self, answers: Sequence[tuple[Taken[Publish], Answer]]) -> None:
        """Acknowledge what was confirmed, once it is known that a real queue has it."""
        if not self._answered:
            self._answered_at = time.monotonic()
        self._answered += answers
        self.flush(due_only=True)

    def flush(self, *, due_only: bool = False) -> None:
        """Settle what was answered. Raises BrokerError: then nothing of it is settled."""
        tapped = [
            (tag, publish)
            for (tag, publish), answer in self._answered
            if answer.kind == "confirmed" and self.deciding.is_tapped(publish)
        ]
        is_due = (
            not tapped
            or len(self._answered) >= CHECKED_NUMBER
            or time.monotonic() - self._answered_at > CHECKED_SECONDS
        )
        if not self._answered or (due_only and not is_due):
            return
        lost = self._find_lost(tapped)
        settled = [
            (taken, Answer("returned", lost[taken.tag], answer.again))
            if taken.tag in lost
            else (taken, answer)
            for taken, answer in self._answered
        ]
        self._answered = []
        self._queue.settle(settled)

    def _find_lost(self, tapped: Sequence[tuple[int, Publish]]) -> dict[int, str]:
        if not tapped:
            return {}
        after = self.check()
        with self.intake.attended():
            return {tag: why for tag, publish in tapped if (why := after.explain_loss(publish))}

    def _decide(self, arrival: Arrival) -> tuple[Publish, Publish] | None:
        self.costly = self.costly or explain_near_limit(arrival, self.limit)
        if self.costly or self.deciding.is_own(arrival):
            return None
        self.number += 1
        try:
            publish = self.deciding.publish(arrival, self.number)
        except Unsendable as error:
            self._queue.exclude()
            self._count("failed", str(error))
            return None
        return publish, publish

    def _count_answer(self, publish: Publish, answer: Answer) -> None:
        # What may have arrived stays in the queue.
        self.counts["doubled"] += answer.again or answer.kind == "nacked"
        if answer.kind == "unknown":
            self._unknown += 1
        else:
            self._count(_COUNTED[answer.kind], answer.error)

    def _count(self, name: str, error: str) -> None:
        self.counts[name] += 1
        self.error = self.error or error

    def _check_empty(self, is_busy: bool) -> None:
        """Whether the queue is empty: nothing comes, nothing is on the way, nothing lies there."""
        now = time.monotonic()
        if is_busy or self._queue.unsettled or self.intake.waiting:
            self._quiet_since = now
        elif now - self._quiet_since > self.empty_seconds:
            self._quiet_since = now
            self._is_empty = not (self.intake.depth() or self.intake.waiting)
