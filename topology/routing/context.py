"""What holds for all of a walk: the vhost, the broker's version, who consumes what and how."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from topology.definitions import Queue
from topology.message import Forwarder
from topology.routing.consumer import Consumer, delivery_limit
from topology.routing.cycle import count_of
from topology.routing.matching.index import NEWEST, Index
from topology.routing.message_copy import Copy


@dataclass(frozen=True)
class Circumstances:
    """`consumers` and `forwarders` by queue; one that is in neither is left alone."""

    index: Index
    version: tuple[int, ...] = NEWEST
    consumers: Mapping[str, Consumer] = field(default_factory=dict)
    forwarders: Mapping[str, Forwarder] = field(default_factory=dict)

    def state(self, copy: Copy, queue: Queue) -> Hashable:
        """All that the further way depends on: one in the same state twice goes round for ever."""
        counts = [
            min(count_of(copy.visible_deaths, name, "rejected"), times)
            for name, times in self._counting_consumers
        ]
        return (
            queue.name,
            copy.exchange,
            copy.keys,
            copy.expiration_ms,
            tuple((entry.queue, entry.reason) for entry in copy.deaths),
            min(copy.failed, self._most_failures),
            tuple(counts),
        )

    @cached_property
    def _counting_consumers(self) -> list[tuple[str, int]]:
        return [(name, c.times) for name, c in self.consumers.items() if c.times is not None]

    @cached_property
    def _most_failures(self) -> int:
        """More failed deliveries than this make no difference."""
        limits = [
            delivery_limit(self.index.queues[name], self.version) or 0
            for name, consumer in self.consumers.items()
            if consumer.does in ("requeues", "crashes") and name in self.index.queues
        ]
        return max(limits, default=-1) + 1


def merge_consumers(
    consumed: AbstractSet[str], consumers: Mapping[str, Consumer] | None
) -> Mapping[str, Consumer]:
    """The consumers by queue; those of `consumed` without another behaviour ack."""
    return {**dict.fromkeys(consumed, Consumer()), **(consumers or {})}
