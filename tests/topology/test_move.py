"""The loop that moves messages: nothing is lost, and each is settled exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.numbers import Numbers
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import OutcomeUnknown
from topology.message import Publish
from topology.transfer.move import TURN_SECONDS, Step, move

CONFIRMED = Answer("confirmed")


class Wire:
    """Answers as many at a time as `portions` says, in its order; then all, or never any more."""

    def __init__(self, portions: Sequence[int] = (), *, is_dead: bool = False) -> None:
        self.on_the_way: list[int] = []
        self.published: list[Publish] = []
        self.waits: list[float] = []
        self.most = 0
        self._portions = iter(portions)
        self._is_dead = is_dead
        self.is_broken = False

    @property
    def in_flight(self) -> int:
        return len(self.on_the_way)

    def publish(self, publish: Publish, token: int) -> None:
        self.on_the_way.append(token)
        self.published.append(publish)
        self.most = max(self.most, self.in_flight)

    def answers(self, seconds: float) -> list[tuple[int, Answer]]:
        self.waits.append(seconds)
        number = next(self._portions, 0 if self._is_dead else self.in_flight)
        answered, self.on_the_way = self.on_the_way[:number], self.on_the_way[number:]
        return [(token, CONFIRMED) for token in answered]

    def abandon(self) -> list[tuple[int, Answer]]:
        left, self.on_the_way = self.on_the_way, []
        return [(token, Answer("unknown", "no answer")) for token in left]


def moved(
    source: Any,
    wire: Any,
    window: int = 10,
    is_stopping: Callable[[], bool] = lambda: False,
    **more: Any,
) -> None:
    move(source, wire, window=window, is_stopping=is_stopping, **more)


@given(st.integers(0, 200), st.integers(1, 50), st.lists(st.integers(0, 20), max_size=100))
def test_each_is_settled_once_with_never_more_than_a_window_on_the_way(
    total: int, window: int, portions: list[int]
) -> None:
    source, wire = Numbers(total), Wire(portions)
    moved(source, wire, window)
    assert [number for number, _ in source.settled] == list(range(total))
    assert [publish.body for publish in wire.published] == [b"%d" % n for n in range(total)]
    assert wire.most <= window
    assert all(room * 2 >= window for room in source.rooms)


def test_what_has_no_answer_at_the_end_is_settled_as_unknown() -> None:
    source, wire = Numbers(5), Wire([2], is_dead=True)
    moved(source, wire, patience_seconds=0.0)
    assert source.kinds() == {"confirmed": 2, "unknown": 3}


def test_what_a_turn_raises_ends_it_after_all_on_the_way_is_settled() -> None:
    source, wire = Numbers(100), Wire([0])

    def turn() -> None:
        raise KeyError("stopped")

    with pytest.raises(KeyError):
        moved(source, wire, turn=turn)
    assert [number for number, _ in source.settled] == list(range(10))
    assert wire.waits == [TURN_SECONDS] * 2


def test_one_that_is_stopping_takes_nothing_more() -> None:
    source = Numbers(100)
    moved(source, Wire(), is_stopping=lambda: source.given > 0)
    assert len(source.settled) == source.given == 10


class Cut(Wire):
    """Its connection is broken from the second turn on, in which it hands out the last answers."""

    def answers(self, seconds: float) -> list[tuple[int, Answer]]:
        if self.is_broken:
            raise OutcomeUnknown("The connection broke.")
        answered = super().answers(seconds)
        self.is_broken = answered[0][0] != 0
        return answered


def test_nothing_is_taken_after_the_connection_broke() -> None:
    source, wire = Numbers(100), Cut([3, 5])
    with pytest.raises(OutcomeUnknown):
        moved(source, wire, 6)
    assert [number for number, _ in source.settled] == list(range(8))
    assert source.given == 9


class Late(Numbers):
    """Has the second one only after it was asked a few times."""

    def take(self, room: int) -> Sequence[Step[int]]:
        self.total = 2 if len(self.rooms) > 2 else 1
        return super().take(room)

    @property
    def is_exhausted(self) -> bool:
        return self.given == 2


def test_a_source_that_has_none_just_now_is_asked_again() -> None:
    source, wire = Late(1), Wire()
    moved(source, wire, idle_seconds=0.0)
    assert len(source.settled) == 2
    assert wire.waits == [TURN_SECONDS, 0.0, 0.0, TURN_SECONDS]
