"""Parking one message that a peek cannot put back."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any

from django import db

from delayboard.dead_letters.parking.session import opened
from delayboard.dead_letters.parking.store_batch import (
    ParkingWriter,
    SpaceCheck,
    StoreFailed,
    forget_connection,
)
from delayboard.dead_letters.queues.peek import MAXIMUM_BYTES, Store
from topology.message import Message
from topology.models import Broker


def make_store(broker: Broker, queue: str, user: Any) -> Store:
    """Returns where a peek of this queue stores a message; both calls raise StoreFailed."""
    space = SpaceCheck(refused_bytes=MAXIMUM_BYTES)
    return Store(space.check, partial(_store_last, broker, queue, user))


def _store_last(broker: Broker, queue: str, user: Any, message: Message) -> None:
    """Commit the message to the database, trying for some seconds; the caller acknowledges it."""
    try:
        with opened(broker, queue, by=user) as session:
            ParkingWriter(session).store_patiently(
                [message], stop=Event(), report=lambda trouble: None
            )
    except (db.Error, StoreFailed) as error:
        forget_connection()
        why = error.__cause__ if isinstance(error, StoreFailed) else error
        raise StoreFailed(
            f"Delayboard could not park the first message, which had no delivery left: {why}. "
            "RabbitMQ dropped it or dead-lettered it again."
        ) from error
