"""Queues with a maximum length, and how full each is now; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topology.content.text import count_of
from topology.definitions import is_tap
from topology.snapshot import QueueNumbers, Snapshot

_NONE = QueueNumbers()


@dataclass(frozen=True)
class LimitedQueue:
    """`most` and `most_bytes` are None without such a limit; `has` (ready) is None when unknown."""

    name: str
    most: int | None
    most_bytes: int | None
    has: int | None
    is_consumed: bool

    @property
    def is_full(self) -> bool:
        """Whether it has its maximum of messages and no consumer; bytes are not known."""
        if self.is_consumed or self.most is None or self.has is None:
            return False
        return self.has >= self.most

    @property
    def sentence(self) -> str:
        stated = ((self.most, "message"), (self.most_bytes, "byte"))
        limits = [count_of(number, unit) for number, unit in stated if number is not None]
        most = f"“{self.name}” has a maximum length of {' or '.join(limits)}"
        if self.has is None:
            return f"{most}. Its number of messages is unknown."
        return f"{most}, and {count_of(self.has, 'message')} now."


def find_limited_queues(snapshot: Snapshot) -> Mapping[str, LimitedQueue]:
    """The queues with a maximum length by name; a stream's is how long it keeps what was read."""
    found = {}
    for queue in snapshot.definitions.queues:
        most = queue.arguments.number("x-max-length")
        most_bytes = queue.arguments.number("x-max-length-bytes")
        if queue.type == "stream" or is_tap(queue.name) or (most is None and most_bytes is None):
            continue
        numbers = snapshot.numbers.get(queue.name, _NONE)
        # Those that a consumer holds do not count.
        has = numbers.messages if numbers.ready is None else numbers.ready
        found[queue.name] = LimitedQueue(queue.name, most, most_bytes, has, bool(numbers.consumers))
    return found
