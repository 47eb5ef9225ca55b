"""A source of numbered messages for the loop that moves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from topology.broker.amqp.pipeline import Answer
from topology.message import Publish
from topology.transfer.move import Step


class Numbers:
    """Gives out the numbers below `total`, and remembers what it is told, in one list."""

    def __init__(self, total: int, publish: Callable[[int], Publish] | None = None) -> None:
        self.total = total
        self.given = 0
        self.rooms: list[int] = []
        self.settled: list[tuple[int, Answer]] = []
        self._publish = publish or (lambda number: Publish("", "q", body=b"%d" % number))

    def take(self, room: int) -> Sequence[Step[int]]:
        self.rooms.append(room)
        first, self.given = self.given, min(self.total, self.given + room)
        return [Step(number, self._publish(number)) for number in range(first, self.given)]

    def settle(self, answers: Sequence[tuple[int, Answer]]) -> None:
        self.settled += answers

    @property
    def is_exhausted(self) -> bool:
        return self.given == self.total

    def kinds(self) -> Counter[str]:
        assert len({number for number, _ in self.settled}) == len(self.settled)
        return Counter(answer.kind for _, answer in self.settled)
