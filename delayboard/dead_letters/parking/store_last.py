"""Parking one message that a peek cannot put back."""

from __future__ import annotations

from threading import Event
from typing import Any

from delayboard.dead_letters.parking.keep import Keeper
from delayboard.dead_letters.parking.session import opened
from topology.message import Message
from topology.models import Broker


def store_last(broker: Broker, queue: str, user: Any, message: Message) -> None:
    """Commit the message to the database, trying for some seconds; the caller acknowledges it.

    Raises JournalFailed.
    """
    with opened(broker, queue, by=user) as session:
        Keeper(session).hold([message], stop=Event(), say=lambda trouble: None)
