"""What the parts of a running interception share: its row, its lease, and when to stop."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from delayboard.changes.select_messages import SelectedMessages
from delayboard.models import Interception, InterceptionState
from topology import work


class Session:
    """One worker's time with an interception, under its lease."""

    def __init__(
        self, row: Interception, lease: work.Lease, stop: Event, alive: Callable[[], None]
    ) -> None:
        self.row = row
        self.lease = lease
        self.stop = stop
        self.objects = row.objects_of_broker
        self.selection = SelectedMessages(row)
        self._alive = alive
        self._reported = row.work.error

    def step(self) -> None:
        """Raises Stopped when another has it: then nothing more may be done."""
        self.lease.pulse(0, 0)
        self._alive()

    def set_state(self, state: InterceptionState) -> None:
        self.step()
        Interception.objects.filter(pk=self.row.pk).update(state=state)
        self.row.state = state

    def report(self, error: str) -> None:
        """Show what keeps the messages waiting; "" when nothing does."""
        if error != self._reported:
            self._reported = error
            self.lease.report(error)
