"""What of a queue is written down before it is published, and acknowledged afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from analytics.scheduled.close_rows import close_moved
from delayboard.models import DelayMigration, MovedMessage
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.message import Publish
from topology.transfer.move import Step
from topology.transfer.queue_source import QueueSource, Taken

# Messages that a kill can double: half are in flight, half are confirmed and not acknowledged.
WINDOW = 100


class Mark(NamedTuple):
    """What a message on the way counts as, the row of it, for whom it is, "" for malformed, and
    when it is due.
    """

    key: str
    row_key: str
    destination: str
    is_doubled: bool
    due_at: datetime | None = None

    @property
    def is_malformed(self) -> bool:
        return not self.destination


@dataclass
class RecordedQueue:
    """A queue whose messages are written down before they are published, and acknowledged when
    they are confirmed and `check` has raised nothing since. `aim` gives each publish its remaining
    delay, after its row is committed: a busy disk makes no message late.
    """

    row: DelayMigration
    name: str
    queue: QueueSource[Mark]
    publishing: Pipeline[Taken[Mark]]
    aim: Callable[[Publish, Mark], Publish]
    check: Callable[[Sequence[Mark]], None]
    _confirmed: list[tuple[Taken[Mark], Answer]] = field(default_factory=list)
    _is_refused: bool = False

    @property
    def is_exhausted(self) -> bool:
        return self.queue.is_exhausted

    def take(self, room: int) -> Sequence[Step[Taken[Mark]]]:
        steps = self.queue.take(room)
        if steps:
            MovedMessage.objects.bulk_create(
                MovedMessage(migration=self.row, key=step.token.mark.key, queue=self.name)
                for step in steps
            )
        return [Step(token, self.aim(publish, token.mark)) for token, publish in steps]

    def settle(self, answers: Sequence[tuple[Taken[Mark], Answer]]) -> None:
        if self._is_refused:
            return
        self._confirmed += [one for one in answers if one[1].kind == "confirmed"]
        if others := [one for one in answers if one[1].kind != "confirmed"]:
            self.queue.settle(others)
        is_full = len(self._confirmed) * 2 >= WINDOW
        if self._confirmed and (is_full or not self.publishing.in_flight):
            confirmed, self._confirmed = self._confirmed, []
            marks = [taken.mark for taken, _ in confirmed]
            # Once it raises, nothing more is acknowledged: of what is on the way, too, a tap may
            # be all that took it, though the binding is back at the next look.
            self._is_refused = True
            self.check(marks)
            self._is_refused = False
            self.queue.settle(confirmed)
            close_moved(self.row.source, [mark.row_key for mark in marks])
