"""What of a queue is written down before it is published, and acknowledged afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from analytics.scheduled.rows.close_moved import close_moved
from delayboard.models import DelayMigration, MovedMessage
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.message import Publish
from topology.transfer.move import Step
from topology.transfer.queue_source import QueueSource, Taken

# A kill can double so many: half are on the way, half are confirmed and not acknowledged.
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


class RecordedQueue:
    """A queue whose messages are written down before they are published, and acknowledged when
    they are confirmed and `check` has raised nothing since. `aim` gives each publish its remaining
    delay, after its row is committed: a busy disk makes no message late.
    """

    def __init__(
        self,
        row: DelayMigration,
        name: str,
        queue: QueueSource[Mark],
        publishing: Pipeline[Taken[Mark]],
        *,
        aim: Callable[[Publish, Mark], Publish],
        check: Callable[[Sequence[Mark]], None],
    ) -> None:
        self._row = row
        self._name = name
        self._aim = aim
        self._queue = queue
        self._publishing = publishing
        self._check = check
        self._confirmed: list[tuple[Taken[Mark], Answer]] = []
        self._is_refused = False

    @property
    def is_exhausted(self) -> bool:
        return self._queue.is_exhausted

    def take(self, room: int) -> Sequence[Step[Taken[Mark]]]:
        steps = self._queue.take(room)
        if steps:
            MovedMessage.objects.bulk_create(
                MovedMessage(migration=self._row, key=step.token.mark.key, queue=self._name)
                for step in steps
            )
        return [Step(token, self._aim(publish, token.mark)) for token, publish in steps]

    def settle(self, answers: Sequence[tuple[Taken[Mark], Answer]]) -> None:
        if self._is_refused:
            return
        self._confirmed += [one for one in answers if one[1].kind == "confirmed"]
        if others := [one for one in answers if one[1].kind != "confirmed"]:
            self._queue.settle(others)
        is_full = len(self._confirmed) * 2 >= WINDOW
        if self._confirmed and (is_full or not self._publishing.in_flight):
            confirmed, self._confirmed = self._confirmed, []
            marks = [taken.mark for taken, _ in confirmed]
            # Once it raises, nothing more is acknowledged: of what is on the way, too, a tap may
            # be all that took it, though the binding is back at the next look.
            self._is_refused = True
            self._check(marks)
            self._is_refused = False
            self._queue.settle(confirmed)
            close_moved(self._row.source, [mark.row_key for mark in marks])
