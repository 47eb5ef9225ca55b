"""Stores a batch: messages, bodies, counts and facts in one transaction; which may be repeats.

A crash between commit and ack has a message delivered again, and then it is kept a second time:
two equal messages can both be real, so that nothing is ever dropped. It is marked if it is
flagged as redelivered, and equals a message whose ack the broker may not have had.

When the nodes of the connection and of a quorum queue's leader lose each other, the queue takes
back what it had delivered, and delivers it again, over the same connection too (`{down, Pid,
noconnection}` in rabbit_fifo.erl); meanwhile the channel answers as if it had the acks
(rabbit_quorum_queue:stat/2). It has counted that: there a higher count makes a repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from time import monotonic

from django import db
from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from analytics import facts
from analytics.events import bounded
from analytics.recorder.record import RecordingFailed
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.failure import fit_column
from delayboard.dead_letters.parked.store import Prepared
from delayboard.models import Body, ParkedMessage, Parking, ParkSession
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, read_properties
from topology.message import COUNTED_BY_QUEUE, REPLAY_HEADER, Headers, Message
from topology.models.client_convention import read_conventions

# Seconds for which a batch is stored again with its messages held, before they are given back.
HOLD_SECONDS = 5.0
RETRY_SECONDS = 0.5
# Bytes that the database must have free beyond what it could not take.
SPARE_BYTES = 262_144
# Time after parking in which acks that seemed sure are doubted.
LONGEST_OUTAGE = timedelta(hours=1)


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
            earlier = find_earlier(session, prepared)
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


def find_earlier(session: ParkSession, prepared: Sequence[Prepared]) -> list[int | None]:
    """For each message the one that it may be a repeat of; a message has one repeat at most."""
    doubtful = {p.content_id for p in prepared if p.message.redelivered}
    counted = {p.content_id for p in prepared if deliveries(p.message.headers)} & doubtful
    waiting = _find_unsure(session, doubtful, counted) if doubtful else {}
    found: list[int | None] = []
    for one in prepared:
        raw = one.message.properties.raw
        known = waiting.get((one.content_id, identity(raw)), []) if one.message.redelivered else []
        count = deliveries(one.message.headers)
        place = next((n for n, (_, highest) in enumerate(known) if count > highest), None)
        found.append(None if place is None else known.pop(place)[0])
    return found


def number_unsure(parking: Parking) -> int:
    """How many that this parking kept may lie in their queue still, and have no repeat."""
    return (
        ParkedMessage.objects.filter(
            ~Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk"))),
            session__parking=parking,
            session__ended_at=None,
            pk__gt=F("session__acked_to"),
            pk__lte=F("session__stored_to"),
        )
        .order_by()
        .count()
    )


def identity(raw: bytes) -> bytes:
    """The properties without what a queue adds when it delivers a message again."""
    if not any(name.encode() in raw for name in COUNTED_BY_QUEUE):
        return raw
    try:
        return edit_properties(read_properties(raw), drop_header=COUNTED_BY_QUEUE.__contains__).raw
    except FieldError:
        return raw


def deliveries(headers: Headers) -> int:
    """How many deliveries before this one the queue has counted in the headers."""
    counts = [headers.get(name) for name in COUNTED_BY_QUEUE]
    return sum(count for count in counts if isinstance(count, int) and count > 0)


def _find_unsure(
    session: ParkSession, contents: set[str], counted: set[str]
) -> dict[tuple[str, bytes], list[tuple[int, int]]]:
    """Messages of the queue that have no repeat, and the deliveries that a repeat of each exceeds.

    Of other sessions those whose ack is not known, with -1. Where the queue has counted deliveries
    (`counted`) also those whose ack seemed sure: of this session, and of the last hour.
    """
    parked_messages: dict[tuple[str, bytes], list[tuple[int, int]]] = {}
    of_others = ~Q(session=session.pk)
    is_unsure = of_others & Q(pk__gt=F("session__acked_to"))
    is_recent = Q(session=session.pk) | Q(parked_at__gt=timezone.now() - LONGEST_OUTAGE)
    rows = ParkedMessage.objects.filter(
        is_unsure | (is_recent & Q(content_id__in=counted)),
        ~Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk"))),
        broker=session.broker_id,
        queue=fit_column(session.queue),
        content_id__in=contents,
        pk__lte=F("session__stored_to"),
    )
    columns = ("pk", "content_id", "properties", "session", "session__acked_to")
    for key, content, raw, of, acked_to in rows.order_by("pk").values_list(*columns):
        has_count = of == session.pk or key <= acked_to
        highest = deliveries(read_properties(bytes(raw)).headers) if has_count else -1
        known = parked_messages.setdefault((content, identity(bytes(raw))), [])
        known.append((key, highest))
    return parked_messages
