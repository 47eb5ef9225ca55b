"""Taking from a consumer: each message is acknowledged after its message is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event

from django import db

from delayboard.dead_letters.parking.in_flight_limit import Limits
from delayboard.dead_letters.parking.session import Acks
from delayboard.dead_letters.parking.store_batch import ParkingWriter, forget_connection
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError


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
        """At the end of the block acknowledge what was committed and put back the rest by nack.

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
