"""A publisher for tests, in which a message that is not confirmed raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topology.broker.address import Address
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.pipeline import CONFIRMED, Answer, Publisher
from topology.message import Publish


class StrictPublisher(Publisher):
    """Raises OutcomeUnknown where a queue may have the message, else Refused."""

    def publish(self, publish: Publish) -> Answer:
        super().publish(publish).require()
        return CONFIRMED


@contextmanager
def publisher(address: Address, name: str, *, heartbeat: int = 10) -> Iterator[StrictPublisher]:
    with open_connection(address, name, heartbeat=heartbeat) as connection:
        yield StrictPublisher(connection, address)
