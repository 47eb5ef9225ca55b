"""A live queue as the source of a move: what is confirmed is acknowledged, all else goes back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Answer
from topology.message import Publish
from topology.transfer.move import Step

# Seconds that it waits for a message when nothing is in flight.
WAIT_SECONDS = 0.2
# Bytes in flight, or waiting for their acks, at most, and one message more.
UNACKED_BYTES = 32_000_000

Mark = TypeVar("Mark")


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
