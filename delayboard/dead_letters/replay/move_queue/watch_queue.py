"""The live queue of a replay straight through, as it is at the moment: may it be taken from?"""

from __future__ import annotations

import time
from contextlib import suppress

from delayboard.dead_letters.replay.move_queue.delivery_limit import Costly, explain_costly
from topology import snapshots
from topology.broker.errors import (
    Blocked,
    BrokerError,
    NotFound,
    Refused,
    Unsupported,
    alarm_sentence,
)
from topology.broker.management.client import Management
from topology.broker.management.refresh import read_queue, refresh_objects
from topology.definitions import Queue
from topology.models import Broker
from topology.routing.consumer import delivery_limit

# How often the queue is checked for a delivery limit, and the longest wait for it (seconds).
CHECK_SECONDS = 5.0
CHECK_PATIENCE_SECONDS = 2.0


class QueueWatch:
    """Reads the vhost once, as `snapshots.for_action` does, and then this queue alone.

    Raises BrokerError, Blocked while the broker has an alarm: it would hand out messages and take
    none. Raises Costly for a queue from which taking destroys messages.
    """

    def __init__(self, broker: Broker, management: Management, name: str) -> None:
        self._management, self._name = management, name
        known = snapshots.for_action(broker, management, [])
        self._known = refresh_objects(management, [Queue(name)], known)
        if self._known.definitions.queue(name) is None:
            raise NotFound(f"There is no queue “{name}” any more.")
        queues = self._in_force()
        if why := self._costly(queues):
            raise Costly(why)
        if self._known.alarms:
            raise Blocked(alarm_sentence(self._known.alarms))
        self._checked_at = time.monotonic()
        limits = [delivery_limit(queue, self._known.version_tuple) for queue in queues]
        self.limit = min((limit for limit in limits if limit is not None), default=None)
        self.definitions = self._known.definitions

    @property
    def is_due(self) -> bool:
        """Whether the next check for a delivery limit is due."""
        return time.monotonic() - self._checked_at > CHECK_SECONDS

    def costly(self) -> str:
        """Why consuming is costly now, by a policy; "" when it is not, or the broker is silent."""
        self._checked_at = time.monotonic()
        with suppress(BrokerError), self._management.patience(CHECK_PATIENCE_SECONDS):
            return self._costly(self._in_force())
        return ""

    def _in_force(self) -> tuple[Queue, ...]:
        """The queue as it may be in force now; as reported where policies cannot be read."""
        try:
            return read_queue(self._management, self._name)
        except (Refused, Unsupported):
            near = refresh_objects(self._management, [Queue(self._name)], self._known)
            queue = near.definitions.queue(self._name)
            return () if queue is None else (queue,)

    def _costly(self, queues: tuple[Queue, ...]) -> str:
        found = (explain_costly(queue, self._known.version_tuple) for queue in queues)
        return next(filter(None, found), "")

    def average(self) -> int:
        """The size of a body (bytes), 0 where it is not known. Raises BrokerError."""
        report = self._management.queue(self._name)
        number, size = report.get("messages"), report.get("message_bytes")
        if not isinstance(number, int) or not isinstance(size, int) or not number:
            return 0
        return size // number
