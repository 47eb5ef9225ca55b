"""How many messages are ready in queues now: the statistics of the API are seconds old."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from topology.broker.address import Address
from topology.broker.amqp.connection import cut_after, open_connection
from topology.broker.errors import Unreachable

NOT_FOUND = 404
# A quorum queue that does not answer the broker within this time is reported as empty
# (rabbit_quorum_queue:stat/1 and rabbit_fifo_client:stat/1, 3.10.8 to 4.3.6).
UNANSWERED_SECONDS = 0.25
PATIENCE_SECONDS = 10.0


def live_depths(
    address: Address, queues: Iterable[str], *, in_all: float | None = None
) -> dict[str, int]:
    """Ready messages by queue, one passive declare each; queues that no longer exist are omitted.

    Messages held by at-least-once dead-lettering are not ready and not counted. Raises BrokerError,
    also when it takes longer than `in_all` seconds: in the first minute after a node died, 4.3
    answers nothing of its classic queues.
    """
    depths = {}
    with open_connection(address, "counting") as connection:
        if in_all is not None:
            cut_after(connection, in_all)
        channel = connection.channel()
        for name in queues:
            try:
                depths[name] = ready_messages(channel, name)
            except pika.exceptions.ChannelClosedByBroker as error:
                if error.reply_code != NOT_FOUND:
                    raise
                channel = connection.channel()
    return depths


def ready_messages(channel: BlockingChannel, queue: str) -> int:
    """Count ready messages by a passive declare. Only a queue that answered is reported as empty.

    Raises Unreachable where it does not, and what pika raises.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while (number := _count(channel, queue)) is None:
        if time.monotonic() > until:
            raise Unreachable(
                f"The queue “{queue}” does not answer, so the number of its messages is not known. "
                "Check the load of RabbitMQ."
            )
    return number


def is_known_empty(channel: BlockingChannel, queue: str) -> bool:
    """Whether no message is ready, asked once; False too where the queue did not answer in time."""
    return _count(channel, queue) == 0


def _count(channel: BlockingChannel, queue: str) -> int | None:
    """Ready messages; None when the queue may not have answered."""
    asked = time.monotonic()
    number = int(channel.queue_declare(queue, passive=True).method.message_count)
    is_answer = number or time.monotonic() - asked < UNANSWERED_SECONDS
    return number if is_answer else None
