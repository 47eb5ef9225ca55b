"""What the consumer of a queue does with a message, as far as the way depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topology.definitions import Queue
from topology.routing.cycle import Entries, count_of

Does = Literal["acks", "rejects", "requeues", "crashes"]
# rabbit_quorum_queue.erl 4.0.5 and 4.3.6; none before 4.0
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
