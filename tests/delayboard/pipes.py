"""A broker in memory behind the pipeline of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from delayboard.dead_letters.replay import send_batch
from topology.broker.amqp.pipeline import CONFIRMED, Answer
from topology.broker.errors import BrokerError
from topology.definitions import Definitions
from topology.message import REPLAY_HEADER, Publish


class Pipes:
    """Keeps what is published and answers as `decide` says; None leaves it without an answer.

    `before` is called with each message before it is taken.
    """

    def __init__(self) -> None:
        self.published: list[Publish] = []
        self.declared: list[Definitions] = []
        self.decide: Callable[[Publish], Answer | None] = lambda publish: CONFIRMED
        self.before: Callable[[Publish], None] = lambda publish: None
        self.broken: BrokerError | None = None
        self._waiting: list[tuple[Any, Publish]] = []

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def is_broken(self) -> bool:
        return False

    @property
    def bodies(self) -> list[bytes]:
        return [publish.body for publish in self.published]

    @property
    def names(self) -> list[str]:
        return [publish.properties.headers[REPLAY_HEADER] for publish in self.published]

    def declare(self, definitions: Definitions) -> None:
        self.declared.append(definitions)

    def publish(self, publish: Publish, token: Any) -> None:
        self.before(publish)
        self.published.append(publish)
        self._waiting.append((token, publish))

    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        if self.broken is not None:
            self._waiting.clear()
            raise self.broken
        reported = [(token, self.decide(publish)) for token, publish in self._waiting]
        self._waiting.clear()
        return [(token, answer) for token, answer in reported if answer is not None]

    def abandon(self) -> list[tuple[Any, Answer]]:
        return []


@contextmanager
def opened(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipes]:
    """Every replay publishes into these, for the length of a block."""

    @contextmanager
    def pipeline(*args: Any, **kwargs: Any) -> Iterator[Pipes]:
        yield pipes

    with monkeypatch.context() as patched:
        patched.setattr(send_batch, "pipeline", pipeline)
        yield pipes
