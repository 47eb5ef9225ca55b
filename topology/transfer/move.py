"""The one loop that moves messages: get, decide, publish confirmed, settle.

A source marks durably what it gives out before anything is sent, and settles only what has its
answer. In this order no crash loses a message, and the source's marks tell which may be there
twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.message import Publish

# Seconds that one turn waits for an answer: a pause or an end takes effect within a few.
TURN_SECONDS = 0.05
# Seconds that it waits at the end for messages in flight; what has no answer then is `unknown`.
PATIENCE_SECONDS = 10.0

Token = TypeVar("Token")


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
