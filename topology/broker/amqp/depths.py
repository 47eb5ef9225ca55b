"""How many messages are ready in queues now: the statistics of the API are seconds old."""

from __future__ import annotations

from collections.abc import Iterable

import pika.exceptions

from topology.broker.address import Address
from topology.broker.amqp.connection import connected

NOT_FOUND = 404


def live_depths(address: Address, queues: Iterable[str]) -> dict[str, int]:
    """Ready messages by queue, asked one by one; a queue that is gone is left out.

    What at-least-once dead-lettering holds is not ready, and not counted. Raises BrokerError.
    """
    depths = {}
    with connected(address, "counting") as connection:
        channel = connection.channel()
        for name in queues:
            try:
                declared = channel.queue_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                if error.reply_code != NOT_FOUND:
                    raise
                channel = connection.channel()
            else:
                depths[name] = declared.method.message_count
    return depths
