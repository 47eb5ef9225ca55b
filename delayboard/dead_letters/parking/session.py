"""One connection's worth of parking, and how surely the broker has had its acks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

from django import db
from django.utils import timezone

from delayboard.dead_letters.parking.store_batch import (
    ParkingWriter,
    SpaceCheck,
    StoreFailed,
    forget_connection,
)
from delayboard.dead_letters.queues.peek import MAXIMUM_BYTES, Store
from delayboard.models import Parking, ParkSession
from topology.message import Message
from topology.models import Broker

# A classic queue writes its acks down within some tenths of a second, and forgets them if it is
# killed before; so does a quorum queue with what its members have not written yet.
SURE_AFTER_SECONDS = 5.0


class Acks:
    """Which messages were acknowledged, and when."""

    def __init__(self, session: ParkSession) -> None:
        self._session = session
        self._sent: deque[tuple[float, int]] = deque()

    def sent(self, parked_message: int) -> None:
        """All up to this message were acknowledged now."""
        self._sent.append((monotonic(), parked_message))

    @property
    def are_due(self) -> bool:
        """Whether asking the broker now would make something sure."""
        return bool(self._sent) and monotonic() - self._sent[0][0] > SURE_AFTER_SECONDS

    def confirmed(self) -> None:
        """The broker has answered now, by the same way: what was sent long ago is done."""
        before = self._session.acked_to
        sure = self._take_sure()
        if sure > before:
            self._write(acked_to=sure)

    def ended(self) -> None:
        """The broker has answered after the last of them, and nothing more comes.

        What was sent just now stays in doubt for good: only a redelivered message that equals it
        is marked, and a broker that is killed at this moment sends it once more.
        """
        self._write(acked_to=self._take_sure(), ended_at=timezone.now())

    def _take_sure(self) -> int:
        sure = self._session.acked_to
        while self.are_due:
            _, sure = self._sent.popleft()
        return sure

    def _write(self, **values: Any) -> None:
        ParkSession.objects.filter(pk=self._session.pk).update(**values)
        self._session.acked_to = values["acked_to"]


@contextmanager
def opened(
    broker: Broker, queue: str, *, by: Any = None, parking: Parking | None = None
) -> Iterator[ParkSession]:
    """A session's row for the length of a block; one that kept nothing leaves none."""
    session = ParkSession.objects.create(
        broker=broker, queue=queue, parking=parking, started_by=by, began_at=timezone.now()
    )
    try:
        yield session
    finally:
        try:
            ParkSession.objects.filter(pk=session.pk, stored_to=0).delete()
        except db.Error:
            # The cleaning finds it.
            forget_connection()


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
