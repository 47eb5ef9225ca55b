"""Stores a batch: messages, bodies, counts and facts in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from threading import Event
from time import monotonic

from django import db
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone

from analytics import facts
from analytics.events import bounded
from analytics.recorder.record import RecordingFailed
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parking import repeats
from delayboard.models import Body, ParkedMessage, Parking, ParkSession
from topology.message import REPLAY_HEADER, Message
from topology.models.client_convention import read_conventions

# Seconds for which a batch is stored again with its messages held, before they are given back.
HOLD_SECONDS = 5.0
RETRY_SECONDS = 0.5
# Space that the database must have beyond what it could not take.
SPARE_BYTES = 262_144


class StoreFailed(RecordingFailed):
    """The database does not accept messages; the message says why."""


def store_failure(error: Exception) -> StoreFailed:
    return StoreFailed(
        f"Delayboard cannot store messages: {error}. The messages remain in their queue."
    )


@dataclass
class SpaceCheck:
    """What the database could not take lately: before anything is taken again, that must fit."""

    refused_bytes: int = 0

    def check(self) -> None:
        """Test-write so much, and roll it back. Raises StoreFailed.

        Each delivery from a quorum queue counts against its delivery limit, so no message is
        consumed that cannot be stored.
        """
        try:
            with transaction.atomic():
                size = self.refused_bytes + SPARE_BYTES
                Body.objects.create(sha256="room", data=b"\xff" * size, size=0)
                transaction.set_rollback(True)
        except db.Error as error:
            forget_connection()
            raise store_failure(error) from error


@dataclass
class ParkingWriter:
    """Stores what comes over one connection, in order; `stored` and `repeats` count.

    `pulse` is called in each transaction with how many it keeps; what it raises undoes it. The
    session's `stored_to` is the last message that is known to be committed.
    """

    session: ParkSession
    space: SpaceCheck = field(default_factory=SpaceCheck)
    pulse: Callable[[int], None] = lambda number: None
    stored: int = 0
    repeats: int = 0

    def store_messages(
        self, messages: Sequence[Message], handles: Sequence[str] | None = None
    ) -> list[int]:
        """Commit them; their messages' ids. `handles` are what is still looked for then.

        Raises db.Error.
        """
        own = read_conventions(self.session.broker_id)
        prepared = [store.prepare(message, self.session.queue, own) for message in messages]
        try:
            parked_messages, again = self._commit(prepared, handles)
        except IntegrityError:
            # A body that nobody had any more was deleted while a message was about to have it.
            parked_messages, again = self._commit(prepared, handles)
        self._count(parked_messages, again)
        return parked_messages

    def store_patiently(
        self,
        messages: Sequence[Message],
        *,
        stop: Event,
        report: Callable[[str], None],
        for_good: bool = False,
        handles: Sequence[str] | None = None,
    ) -> list[int]:
        """Store messages, retrying for a while when the database refuses; returns their ids.

        `report` receives the reason. `for_good` retries until `stop` is set, for messages that a
        requeue would destroy. Raises StoreFailed.
        """
        until = monotonic() + HOLD_SECONDS
        has_failed = False
        while True:
            try:
                parked_messages = self._find_committed() if has_failed else []
                parked_messages = parked_messages or self.store_messages(messages, handles)
            except db.Error as error:
                has_failed = True
                forget_connection()
                self.space.refused_bytes = sum(len(message.body) for message in messages)
                if stop.is_set() or (monotonic() > until and not for_good):
                    raise store_failure(error) from error
                report(str(store_failure(error)))
                stop.wait(RETRY_SECONDS)
            else:
                self.space.refused_bytes = 0
                return parked_messages

    def _find_committed(self) -> list[int]:
        """The messages of a commit whose answer was lost; none if it failed.

        Such a transaction may still be running: it holds the session's row until its end.
        """
        session = self.session
        with transaction.atomic():
            ParkSession.objects.select_for_update().filter(pk=session.pk).first()
            rows = ParkedMessage.objects.filter(session=session, pk__gt=session.stored_to)
            found = list(rows.order_by("pk").values_list("pk", "repeat_of"))
        parked_messages = [key for key, _ in found]
        if parked_messages:
            self._count(parked_messages, sum(earlier is not None for _, earlier in found))
        return parked_messages

    def _count(self, parked_messages: Sequence[int], again: int) -> None:
        self.session.stored_to = parked_messages[-1]
        self.stored += len(parked_messages)
        self.repeats += again

    def _commit(
        self, prepared: Sequence[store.Prepared], handles: Sequence[str] | None
    ) -> tuple[list[int], int]:
        session = self.session
        at = timezone.now()
        with transaction.atomic():
            self.pulse(len(prepared))
            earlier = repeats.earlier(session, prepared)
            parked_messages = store.put_prepared(
                session.broker,
                session.queue,
                prepared,
                at=at,
                session=session,
                by=session.started_by,
                repeats=earlier,
            )
            facts.state_all(
                broker=session.broker,
                kind="parked",
                of=((session.queue, stated(p)) for p in prepared),
                at=at,
            )
            again = len(earlier) - earlier.count(None)
            if not ParkSession.objects.filter(pk=session.pk).update(stored_to=parked_messages[-1]):
                # The cleaning took it for one that was killed before its first message.
                again_there = copy(session)
                again_there.stored_to = parked_messages[-1]
                again_there.save(force_insert=True)
            if session.parking_id is not None:
                left = {} if handles is None else {"handles": list(handles)}
                Parking.objects.filter(pk=session.parking_id).update(
                    parked=F("parked") + len(prepared), repeats=F("repeats") + again, **left
                )
        return parked_messages, again


def stated(one: store.Prepared) -> facts.Stated:
    message = one.message
    content = facts.id_of(message.properties, one.content_id, lambda: message.body)
    replay_id = bounded(message.tag(REPLAY_HEADER))
    return facts.Stated(message, content, len(message.body), replay_id)


def forget_connection() -> None:
    """Have the next query open another, if this one cannot be used any more."""
    connection.close_if_unusable_or_obsolete()
