"""What the forwarder of a busy wait takes out: the cancelled messages of its topology."""

from __future__ import annotations

from delayboard.changes import take
from delayboard.models import ChangeState, ScheduledChange
from topology.message import Message
from topology.models import Topology


class CancelledMessages:
    """Asked for each message, and read anew from time to time."""

    def __init__(self, topology: Topology) -> None:
        self._changes = ScheduledChange.objects.filter(topology=topology, interception=None)
        self._tombstones = take.Tombstones(self._changes)

    def reload(self) -> None:
        take.give_up(
            self._changes, "The message did not pass the forwarder. It may have been delivered."
        )
        self._tombstones.reload()

    def takes_out(self, message: Message) -> bool:
        """Whether it is cancelled, which is written down; False when that was undone meanwhile."""
        change = self._tombstones.find(message)
        if change is None:
            return False
        return change.state == ChangeState.DONE or take.finish(change, message)
