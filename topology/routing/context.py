"""What holds for all of a walk: the version, who consumes what and how, and how messages die."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from topology.definitions import Queue
from topology.message import Forwarder
from topology.routing.cycle import Entries, Reason, count_of
from topology.routing.matching.index import NEWEST, Index
from topology.routing.message_copy import Copy

Does = Literal["acks", "rejects", "requeues", "crashes"]
# Default of quorum queues from 4.0 on (rabbit_quorum_queue.erl 4.0.5 and 4.3.6); before there is
# none.
DEFAULT_DELIVERY_LIMIT = 20


@dataclass(frozen=True)
class Consumer:
    """What a consumer does with every message: keep it, reject it for good, requeue it with
    basic.nack, or lose its connection before an answer. It is assumed to answer at once.

    A consumer that requeues with basic.reject counts as one that crashes: from 4.3 on RabbitMQ
    counts it as a failed delivery (rabbit_channel.erl 4.3.6), and before 4.3 every return.
    One that rejects `times` times acks a message whose x-death shows so many rejections in this
    queue.
    """

    does: Does = "acks"
    times: int | None = None

    def action(self, queue: str, visible: Entries) -> Does:
        if self.does == "rejects" and self.times is not None:
            return "acks" if count_of(visible, queue, "rejected") >= self.times else "rejects"
        return self.does


def delivery_limit(queue: Queue, version: tuple[int, ...]) -> int | None:
    """How many failed deliveries a quorum queue forgives; None when it forgives all.

    Before 4.0 a negative limit forgives none (tried on 3.10.8: ten messages that were put back once
    were all dropped); from 4.0 on it means no limit (docs/quorum-queues 4.0).
    """
    if queue.type != "quorum":
        return None
    stated = queue.arguments.number("x-delivery-limit")
    if stated is None:
        return None if version < (4, 0) else DEFAULT_DELIVERY_LIMIT
    if stated < 0:
        return 0 if version < (4, 0) else None
    return stated


def failures_until_death(
    queue: Queue, does: Does, failed: int, version: tuple[int, ...]
) -> int | None:
    """How many more failed deliveries end the message in this queue; None when they never do.

    From 4.3 on a message put back by its consumer does not count, only one whose consumer is lost,
    and what failed in quorum queues before counts too (rabbit_fifo.erl return_one/7,
    maybe_set_msg_delivery_count/2 4.3.6). On 4.0 every return counts, in this queue only.
    """
    limit = delivery_limit(queue, version)
    if limit is None or (does == "requeues" and version >= (4, 3)):
        return None
    return max(1, limit + 1 - (failed if version >= (4, 3) else 0))


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


def find_reasons(
    queue: Queue, version: tuple[int, ...], *, is_delay: bool, is_consumed: bool
) -> tuple[Reason, ...]:
    """The reasons for which messages can die in a queue, by its arguments.

    Nobody rejects in a delay queue, and messages leave it by expiring although it may have no TTL:
    then their own expirations end. Of another queue a message's own expiration is unknown here. A
    TTL of 0 without consumers lets nobody read. Source: RabbitMQ's documentation, “Dead Letter
    Exchanges”; reject-publish refuses new messages and dead-letters none.
    """
    if queue.type == "stream":
        return ()
    is_read = not is_delay and (is_consumed or queue.message_ttl_ms != 0)
    found: list[Reason] = []
    if is_read:
        found.append("rejected")
    if is_delay or queue.message_ttl_ms is not None:
        found.append("expired")
    names = ("x-max-length", "x-max-length-bytes")
    is_bounded = any(queue.arguments.number(name) is not None for name in names)
    if is_bounded and queue.arguments.text("x-overflow") != "reject-publish":
        found.append("maxlen")
    if is_read and delivery_limit(queue, version) is not None:
        found.append("delivery_limit")
    return tuple(found)
