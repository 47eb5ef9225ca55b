"""How much of a queue may be on the way at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from django.conf import settings

from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Conflict, Refused, Unsupported
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.management.refresh import read_reports
from topology.message import Message
from topology.models import Broker

# A crash costs each message on the way one of its deliveries.
PREFETCH_OF_LIMITED = 900
IN_FLIGHT_BYTES = 128 * 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024
DEFAULT_DELIVERY_LIMIT = 20
# Deliveries before its last from which a message is parked alone and at once.
MARGIN = 5
COUNTER = "x-delivery-count"


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
    found = [read(report, settings.MESSAGES_IN_FLIGHT) for report in reports]
    if is_old:
        found.append(Limits(1, 0))
    limits = min(found, key=lambda one: inf if one.deliveries is None else one.deliveries)
    if limits.deliveries == 0:
        raise Conflict(
            f"“{queue}” has delivery limit 0, so RabbitMQ drops every returned message. Set a "
            "higher limit, then park the queue."
        )
    return limits


def read(report: Mapping[str, Any], window: int) -> Limits:
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
