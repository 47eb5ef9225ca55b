"""A count of no messages is believed only of a queue that answered the broker in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from topology.broker.amqp import depths
from topology.broker.amqp.depths import PATIENCE_SECONDS, is_known_empty, ready_messages
from topology.broker.errors import Unreachable


class Channel:
    """Answers with these numbers, each after so many seconds; the last one again and again."""

    def __init__(self, answers: list[tuple[int, float]], patch: pytest.MonkeyPatch) -> None:
        self.answers, self.now = answers, 0.0
        patch.setattr(depths, "time", SimpleNamespace(monotonic=lambda: self.now))

    def queue_declare(self, queue: str, *, passive: bool) -> Any:
        number, seconds = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.now += seconds
        return SimpleNamespace(method=SimpleNamespace(message_count=number))


@pytest.mark.parametrize(
    ("answers", "number"),
    [
        ([(0, 0.01), (9, 0.01)], 0),
        ([(0, 0.26), (3, 0.01)], 3),
        ([(0, 0.26), (0, 0.3), (0, 0.1), (9, 0.01)], 0),
        ([(2, 0.5), (9, 0.01)], 2),
    ],
)
def test_none_that_took_as_long_as_no_answer_are_counted_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, float]], number: int
) -> None:
    channel = Channel(answers, monkeypatch)
    assert ready_messages(cast(Any, channel), "work") == number


def test_a_queue_that_never_answers_is_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel([(0, 0.26)], monkeypatch)
    with pytest.raises(Unreachable, match="“work” does not answer"):
        ready_messages(cast(Any, channel), "work")
    assert channel.now > PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("answer", "is_empty"), [((0, 0.01), True), ((0, 0.26), False), ((1, 0.01), False)]
)
def test_asked_once_an_answer_that_is_late_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, float], is_empty: bool
) -> None:
    channel = Channel([answer, (0, 0.01)], monkeypatch)
    assert is_known_empty(cast(Any, channel), "work") is is_empty
