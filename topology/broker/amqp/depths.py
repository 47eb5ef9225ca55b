"""How many messages are ready in queues now: the statistics of the API are seconds old."""

from __future__ import annotations

from collections.abc import Iterable

import pika.exceptions

from topology.broker.address import Address
from topology.broker.amqp.connection import open_connection

NOT_FOUND = 404


def live_depths(address: Address, queues: Iterable[str]) -> dict[str, int]:
    """Ready messages by queue, one passive declare each; queues that no longer exist are omitted.

    Messages held by at-least-once dead-lettering are not ready and not counted. Raises BrokerError.
    """
    depths = {}
    with open_connection(address, "counting") as connection:
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
