"""Taking from a consumer: each message is acknowledged after it is committed.

A session is one connection's worth of parking, with how surely the broker has had its acks. The
queue's delivery limit decides how many messages may be on the way at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Event
from time import monotonic
from typing import Any

from django import db
from django.conf import settings
from django.utils import timezone

from delayboard.dead_letters.parked.store_batch import (
    ParkingWriter,
    SpaceCheck,
    StoreFailed,
    forget_connection,
)
from delayboard.dead_letters.queues.peek import MAXIMUM_BYTES, Store
from delayboard.models import Parking, ParkSession
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, Conflict, Refused, Unsupported
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.management.refresh import read_reports
from topology.message import Message
from topology.models import Broker

# Seconds after which an ack is sure: a classic queue writes its acks down within some tenths of a
# second, and forgets them if it is killed before; so does a quorum queue with what its members have
# not written yet.
SURE_AFTER_SECONDS = 5.0
# Prefetch at a queue whose deliveries are limited: a crash costs each message on the way one of
# them.
PREFETCH_OF_LIMITED = 900
IN_FLIGHT_BYTES = 128 * 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024
DEFAULT_DELIVERY_LIMIT = 20
# Deliveries before its last from which a message is parked alone and at once.
MARGIN = 5
COUNTER = "x-delivery-count"


class Taking:
    """Stores and acknowledges what a consumer brings.

    Of `wanted` messages (None: without end) the last that fill the prefetch are acknowledged at
    its end only, when nothing comes in their place: so exactly as many leave the queue.
    """

    def __init__(
        self,
        consumer: Consumer,
        writer: ParkingWriter,
        limits: Limits,
        *,
        wanted: int | None = None,
    ) -> None:
        self.taken = 0
        self._consumer = consumer
        self._writer = writer
        self._limits = limits
        self._acks = Acks(writer.session)
        self._free = None if wanted is None else max(0, wanted - limits.prefetch)
        self._unacked: deque[tuple[Delivery, int]] = deque()

    def store(
        self, deliveries: Sequence[Delivery], *, stop: Event, report: Callable[[str], None]
    ) -> None:
        """Commit, then acknowledge. Raises StoreFailed, BrokerError, and what `pulse` raises."""
        near = [delivery.tag for delivery in deliveries if self._limits.is_near(delivery.message)]
        for run in self._limits.runs(deliveries):
            parked_messages = self._writer.store_patiently(
                [delivery.message for delivery in run],
                stop=stop,
                report=report,
                # A nack of this message also requeues those behind it.
                for_good=run[0].tag <= max(near, default=0),
            )
            self.taken += len(run)
            self._unacked.extend(zip(run, parked_messages, strict=True))
            self._acknowledge()

    def confirm_acks(self) -> None:
        """Record which acks the broker certainly received, now and then. Raises BrokerError."""
        if self._acks.are_due:
            self._consumer.confirm_acks()
            self._acks.confirmed()

    def _acknowledge(self) -> None:
        number = len(self._unacked) if self._free is None else min(len(self._unacked), self._free)
        if not number:
            return
        if self._free is not None:
            self._free -= number
        for _ in range(number):
            last, parked_message = self._unacked.popleft()
        self._consumer.ack(through=last.tag)
        self._acks.sent(parked_message)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """At the end of the block, acknowledge what was committed and put back the rest by nack.

        A close without it costs each message a delivery, on 4.3 too.
        """
        try:
            yield
        except BrokerError:
            raise
        except BaseException:
            with suppress(BrokerError):
                self._finish()
            raise
        self._finish()

    def _finish(self) -> None:
        last, parked_message = self._unacked[-1] if self._unacked else (None, 0)
        self._consumer.give_back(through=last.tag if last else 0)
        if parked_message:
            self._acks.sent(parked_message)
        if self._writer.stored != self.taken:
            # What was committed last goes back too: its session stays an unclean one.
            return
        try:
            self._acks.ended()
        except db.Error:
            # The messages stay in doubt, which harms none of them.
            forget_connection()


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
def open_session(
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
        with open_session(broker, queue, by=user) as session:
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


@dataclass(frozen=True)
class Limits:
    """`deliveries`: the failed one after which the queue gives a message up, None for never."""

    prefetch: int
    deliveries: int | None

    @property
    def batch(self) -> int:
        """While one is kept, others come."""
        return max(1, self.prefetch // 3)

    def is_near(self, message: Message) -> bool:
        """Whether few deliveries more destroy the message, or may."""
        if self.deliveries is None:
            return False
        if self.deliveries <= MARGIN:
            return True
        count = message.headers.get(COUNTER)
        return isinstance(count, int) and count >= max(1, self.deliveries - MARGIN)

    def runs(self, deliveries: Iterable[Delivery]) -> Iterator[list[Delivery]]:
        """The same in order, one that is near its end by itself."""
        run: list[Delivery] = []
        for delivery in deliveries:
            if self.is_near(delivery.message):
                if run:
                    yield run
                run = []
                yield [delivery]
            else:
                run.append(delivery)
        if run:
            yield run


def limits_of(broker: Broker, queue: str) -> Limits:
    """The limits of the queue as the broker reports them now. Raises BrokerError.

    Parking acknowledges messages, so it also works with an account that may not read policies.
    """
    with Management(broker.address, seconds=PATIENCE_SECONDS) as management:
        try:
            reports = [*read_reports(management, queue)]
        except (Refused, Unsupported):
            reports = [management.queue(queue)]
        has_negative = any(min(_read_limits(report), default=0) < 0 for report in reports)
        # Before 4.0 a negative limit forgives no failed delivery.
        is_old = has_negative and management.version() < (4, 0)
    found = [make_limits(report, settings.MESSAGES_IN_FLIGHT) for report in reports]
    if is_old:
        found.append(Limits(1, 0))
    limits = min(found, key=lambda one: inf if one.deliveries is None else one.deliveries)
    if limits.deliveries == 0:
        raise Conflict(
            f"“{queue}” has delivery limit 0, so RabbitMQ drops every returned message. Set a "
            "higher limit, then park the queue."
        )
    return limits


def make_limits(report: Mapping[str, Any], window: int) -> Limits:
    """Pure: read the management API's answer; for missing values the worst is assumed.

    At most `window` messages are in flight: a crash may park so many twice.
    """
    deliveries = _read_delivery_limit(report)
    if deliveries is not None and deliveries <= MARGIN:
        return Limits(1, deliveries)
    most = window if deliveries is None else min(window, PREFETCH_OF_LIMITED)
    number, size = _read_number(report.get("messages")), _read_number(report.get("message_bytes"))
    average = size // number if number and size else 1
    return Limits(max(2, min(most, IN_FLIGHT_BYTES // max(1, average))), deliveries)


def _read_delivery_limit(report: Mapping[str, Any]) -> int | None:
    if report.get("type", "quorum") != "quorum":
        return None
    numbers = _read_limits(report)
    limits = [number for number in numbers if number >= 0]
    if limits:
        return min(limits)
    return None if numbers else DEFAULT_DELIVERY_LIMIT


def _read_limits(report: Mapping[str, Any]) -> list[int]:
    policy, arguments = report.get("effective_policy_definition"), report.get("arguments")
    stated = [
        table.get(name)
        for table, name in ((policy, "delivery-limit"), (arguments, "x-delivery-limit"))
        if isinstance(table, Mapping)
    ]
    return [number for value in stated if (number := _read_number(value)) is not None]


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
