"""The soak's own publisher and consumers: each a thread with connections of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from tests.publishing import publisher
from tests.soak.parcels import Ledger, parcel
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Publisher
from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.message import Publish
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels

WORK = "soak"
DELAY = "4s"
# Classic ones: only of those both ends are seen.
LEVELS = delay_levels_params.Params("own", WORK, levels=4, queue_type="classic")
PARKED = "soak-parked"
MESSAGES_PER_SECOND = 8.0
BODY = b"x" * 500
PAUSE_SECONDS = 1.0


def message_id(number: int) -> str:
    return f"soak-{number}"


def number_of(message_id: str | None) -> int:
    """The inverse of `message_id`. Raises ValueError for what is none of ours."""
    return int((message_id or "").removeprefix("soak-"))


def publish_of(number: int) -> Publish:
    exchange, key = WORK, WORK
    match parcel(number).way:
        case "pair":
            exchange = f"{WORK}-retry"
        case "levels":
            units = 1 + number // 10 % (2**LEVELS.levels - 1)
            route = delay_levels.route(LEVELS, units * LEVELS.unit, WORK)
            exchange, key = route.exchange, route.routing_key
    stated = build_properties(message_id=message_id(number), delivery_mode=2, app_id="soak")
    return Publish(exchange, key, stated, BODY)


class Traffic:
    """Sends and consumes from entering the block on; `finish` ends the sending."""

    def __init__(self, address: Address) -> None:
        self.ledger = Ledger()
        self.failures: list[str] = []
        self._address = address
        self._no_more = threading.Event()
        self._stop = threading.Event()
        parts = (
            (self._send, self._no_more),
            (self._consume, self._stop),
            (self._take_parked, self._stop),
        )
        self._threads = [threading.Thread(target=self._keep, args=part) for part in parts]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._no_more.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def finish(self) -> None:
        """Send no more, and return when the sender is done."""
        self._no_more.set()
        self._threads[0].join()

    def _keep(self, part: Callable[[], None], is_over: threading.Event) -> None:
        """Run a part until it is over; a broken connection is a failure, and then it goes on."""
        while not is_over.is_set():
            try:
                part()
                return
            except BrokerError as error:
                self.failures.append(str(error))
                is_over.wait(PAUSE_SECONDS)

    def _send(self) -> None:
        with publisher(self._address, "soak publisher") as channel:
            due = time.monotonic()
            while not self._no_more.wait(max(0.0, due - time.monotonic())):
                due += 1 / MESSAGES_PER_SECOND
                self._send_next(channel)

    def _send_next(self, channel: Publisher) -> None:
        ledger = self.ledger
        number = len(ledger.sent) + len(ledger.uncertain)
        try:
            channel.publish(publish_of(number))
        except OutcomeUnknown:
            ledger.uncertain.append(number)
            raise
        ledger.sent.append(number)

    def _consume(self) -> None:
        with (
            Consumer(self._address, WORK, prefetch=50) as consumer,
            publisher(self._address, "soak consumer") as channel,
        ):
            while not self._stop.is_set():
                for delivery in consumer.batch(limit=1, limit_bytes=10**6, wait=0.5, linger=0):
                    self._work_on(delivery, consumer, channel)

    def _take_parked(self) -> None:
        """What lay there for the whole time would look like a growing broker."""
        with Consumer(self._address, PARKED, prefetch=50) as consumer:
            while not self._stop.is_set():
                for delivery in consumer.batch(limit=50, limit_bytes=10**6, wait=0.5):
                    self.ledger.parked.append(number_of(delivery.message.properties.message_id))
                    consumer.ack(through=delivery.tag)

    def _work_on(self, delivery: Delivery, consumer: Consumer, channel: Publisher) -> None:
        message = delivery.message
        number = number_of(message.properties.message_id)
        wanted = parcel(number)
        if read_history(message.headers).count(WORK, "rejected") < wanted.rejections:
            consumer.reject(delivery)
        else:
            if wanted.is_parked:
                channel.publish(Publish("", PARKED, message.properties, message.body))
            consumer.ack(through=delivery.tag)
        self.ledger.consumed.append(number)
