"""The one loop that moves messages: get, decide, publish confirmed, settle.

A source marks durably what it gives out before anything is sent, and settles only what has its
answer. In this order no crash loses a message, and the source's marks tell which may be there
twice.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.message import Publish

# Longest wait of one turn for an answer, in seconds: a pause or an end takes effect within a few
# turns.
TURN_SECONDS = 0.05
# Seconds at the end for messages in flight; what has no answer then is `unknown`.
PATIENCE_SECONDS = 10.0

Token = TypeVar("Token")
# Seconds that a turn waits for a message when nothing is in flight.
WAIT_SECONDS = 0.2
# Most bytes in flight or waiting for their acks; one message more may be.
UNACKED_BYTES = 32_000_000

Mark = TypeVar("Mark")


class Step(NamedTuple, Generic[Token]):
    """Publish this; its answer is given to `settle` with `token`."""

    token: Token
    publish: Publish


class Source(Protocol[Token]):
    """Where the messages come from, which also remembers durably how far each got."""

    def take(self, room: int) -> Sequence[Step[Token]]:
        """Get and decide: the next ones, at most `room`; none when there is none just now.

        What it returns is durably marked as begun, where the source has such marks.
        """

    def settle(self, answers: Sequence[tuple[Token, Answer]]) -> None:
        """Durably: commit, or acknowledge what was confirmed and leave the rest."""

    @property
    def is_exhausted(self) -> bool:
        """Nothing more will come."""


def move(
    source: Source[Any],
    pipeline: Pipeline[Any],
    *,
    window: int,
    is_stopping: Callable[[], bool],
    turn: Callable[[], None] = lambda: None,
    idle_seconds: float = TURN_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    wait: Callable[[float], float] = lambda seconds: seconds,
    explain_nack: Callable[[Answer], Answer] = lambda answer: answer,
) -> None:
    """Move until the source is exhausted or it is stopping, with at most `window` on the way.

    `turn` is called a few times a second; what it raises ends the moving. However it ends, what
    is on the way is waited for, at most for `patience_seconds`, and settled. With nothing on the
    way it pauses for `idle_seconds`, 0 for a source that waits by itself. With something on the way
    and room for more, `wait` may wait for both, and returns how long answers are waited for after
    it. `explain_nack` finds out what a nack says (topology/operations/answers.py).
    Raises BrokerError when a connection breaks: of what was on the way the source's marks tell.
    """

    def settle(seconds: float) -> None:
        if answers := pipeline.answers(seconds):
            source.settle(
                [
                    (token, explain_nack(answer) if answer.kind == "nacked" else answer)
                    for token, answer in answers
                ]
            )

    try:
        while not (source.is_exhausted or is_stopping()):
            # One that is broken hands out the last answers: what is taken then goes nowhere.
            if pipeline.in_flight * 2 <= window and not pipeline.is_broken:
                for token, publish in source.take(window - pipeline.in_flight):
                    pipeline.publish(publish, token)
            seconds = TURN_SECONDS if pipeline.in_flight else idle_seconds
            if 0 < pipeline.in_flight * 2 <= window:
                seconds = wait(seconds)
            settle(seconds)
            turn()
    finally:
        until = time.monotonic() + patience_seconds
        while pipeline.in_flight and time.monotonic() < until:
            settle(TURN_SECONDS)
        if left := pipeline.abandon():
            source.settle(left)


class RateLimiter:
    """Limits publishing to `rate` messages a second; None is no limit. `now` is in seconds."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._at, self._filled = rate, now, 1.0

    def allows(self, now: float) -> int:
        """How many messages may be published now."""
        if self._rate is None:
            return sys.maxsize
        # An unused share lasts a quarter of a second, so that no burst follows a pause.
        most = max(1.0, self._rate / 4)
        self._filled = min(most, self._filled + (now - self._at) * self._rate)
        self._at = now
        return int(self._filled)

    def take(self, number: int) -> None:
        self._filled -= number


class Taken(NamedTuple, Generic[Mark]):
    """A delivery by its tag, and what the decision about it said beside."""

    tag: int
    mark: Mark


class QueueSource(Generic[Mark]):
    """Takes what `decide` makes of each message, with a mark; None leaves the message there, and
    "drop" acknowledges it: what had to be noted of it is. "later" only has it wait for `settle`.

    `settled` gets the answer of each. Refused and left messages are held until the end, so that
    RabbitMQ does not deliver them again and again. With `is_strict` the first
    refusal ends it.
    """

    def __init__(
        self,
        consumer: Consumer,
        decide: Callable[[Delivery], tuple[Publish, Mark] | Literal["drop", "later"] | None],
        settled: Callable[[Mark, Answer], None],
        *,
        prefetch: int,
        is_strict: bool = False,
    ) -> None:
        self._consumer = consumer
        self._decide = decide
        self._settled = settled
        self._prefetch = prefetch
        self._is_strict = is_strict
        self._open: OrderedDict[int, int] = OrderedDict()
        self._bytes = 0
        self._unsettled = 0
        self._later: set[int] = set()
        self._held = 0
        self.refusal: Answer | None = None

    @property
    def unsettled(self) -> int:
        """How many were taken to be published and are not settled."""
        return self._unsettled

    @property
    def is_full(self) -> bool:
        """Whether what is on the way has so many bytes that nothing more is taken."""
        return self._bytes > UNACKED_BYTES

    @property
    def is_exhausted(self) -> bool:
        """One was refused and that ends it."""
        return self._is_strict and self.refusal is not None

    def take(self, room: int) -> list[Step[Taken[Mark]]]:
        """What has come; waits a moment for it when nothing is on the way. Raises BrokerError."""
        steps: list[Step[Taken[Mark]]] = []
        if self.is_full:
            return steps
        if self._held * 2 > self._prefetch:
            self._held = 0
            self._consumer.more()
        is_in_flight = self._unsettled > len(self._later)
        wait = 0.0 if is_in_flight else WAIT_SECONDS
        for delivery in self._consumer.batch(limit=room, wait=wait, linger=0):
            self._open[delivery.tag] = len(delivery.body)
            self._bytes += len(delivery.body)
            if (decided := self._decide(delivery)) is None:
                self._hold(delivery.tag)
                continue
            if decided == "drop":
                self._bytes -= self._open.pop(delivery.tag)
                self._ack([delivery.tag])
                continue
            if decided == "later":
                self._unsettled += 1
                self._later.add(delivery.tag)
                continue
            publish, mark = decided
            steps.append(Step(Taken(delivery.tag, mark), publish))
        self._unsettled += len(steps)
        return steps

    def settle(self, answers: Sequence[tuple[Taken[Mark], Answer]]) -> None:
        """Acknowledge what was confirmed; tell of all."""
        confirmed = []
        for (tag, mark), answer in answers:
            self._later.discard(tag)
            if answer.kind == "confirmed":
                self._bytes -= self._open.pop(tag)
                confirmed.append(tag)
            else:
                self.refusal = self.refusal or answer
                self._hold(tag)
            self._settled(mark, answer)
        self._unsettled -= len(answers)
        if confirmed:
            self._ack(confirmed)

    def _hold(self, tag: int) -> None:
        self._bytes -= self._open[tag]
        self._open[tag] = 0
        self._held += 1

    def _ack(self, confirmed: list[int]) -> None:
        """All below the first that has no answer at once, what is above it one by one."""
        first_open = next(iter(self._open), max(confirmed) + 1)
        below = [tag for tag in confirmed if tag < first_open]
        above = [tag for tag in confirmed if tag > first_open]
        self._consumer.ack(above, through=max(below, default=0))
