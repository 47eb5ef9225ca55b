"""Switches a vhost's firehose on and off, and reads its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from analytics.models import Firehose
from topology import access, audit
from topology.access import User
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import REQUEST_SECONDS, Management
from topology.models import Broker
from topology.provisioning import firehose


class Refusal(Exception):
    """The request was refused; the message says why."""


@dataclass(frozen=True)
class SwitchState:
    """The state of a vhost's firehose now; None is unknown, and `error` says why.

    `is_copying`: RabbitMQ copies, and into our queue if we requested it. `full` is the share of our
    queue's maximum length in hundredths.
    """

    is_copying: bool | None
    error: str = ""
    copies: int | None = None
    full: int | None = None


def tap_of(row: Firehose) -> str:
    """Our queue: its name is another in every installation, and after every switching on."""
    return firehose.tap_name(f"{int(row.switched_on_at.timestamp() * 1_000_000):x}")


def switch_on(user: User, broker: Broker, *, typed_name: str = "") -> Firehose:
    """Raises Refusal, and BrokerError when the broker refuses; then it is as it was before."""
    with audit.recorded(user, "firehose enabled", broker=broker, what=broker.vhost):
        if refusal := access.production_refusal(broker, typed_name):
            raise Refusal(refusal)
        row = _make_row(broker, user.get_username())
        try:
            with Management(broker.address) as management:
                firehose.switch_on(management, tap_of(row))
        except BrokerError:
            row.delete()
            raise
    return row


def _make_row(broker: Broker, username: str) -> Firehose:
    """The row is written first: after a crash the recorder continues from there."""
    try:
        with transaction.atomic():
            return Firehose.objects.create(broker=broker, switched_on_by=username)
    except IntegrityError as error:
        raise Refusal("The firehose is already enabled.") from error


def switch_off(user: User, broker: Broker) -> bool:
    """Whether RabbitMQ copies no more: it does while others are bound to its copies.

    Raises Refusal, and BrokerError when the broker fails: then it is still wanted.
    """
    with audit.recorded(user, "firehose disabled", broker=broker, what=broker.vhost):
        row = Firehose.objects.filter(broker=broker).first()
        if row is None:
            raise Refusal(
                "Delayboard did not enable the firehose, so it does not disable the firehose."
            )
        tap = tap_of(row)
        with Management(broker.address) as management:
            firehose.switch_off(management, tap)
            row.delete()
            # Its recorder may have put it back in between.
            return firehose.switch_off(management, tap)


def read_state(broker: Broker, row: Firehose | None) -> SwitchState:
    """Read it from the broker, within REQUEST_SECONDS in all."""
    try:
        with Management(broker.address, in_all=REQUEST_SECONDS) as management:
            if row is None:
                return SwitchState(management.is_tracing())
            is_copying = firehose.is_copying(management, tap_of(row))
            copies, full = fill(_queue(management, tap_of(row)))
            return SwitchState(is_copying, copies=copies, full=full)
    except BrokerError as error:
        return SwitchState(None, error=str(error))


def fill(queue: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Copies in our queue and how full that is in hundredths, as the broker last counted."""
    copies, size = queue.get("messages"), queue.get("message_bytes")
    full = 100 * size // firehose.KEPT_BYTES if isinstance(size, int) else None
    return copies if isinstance(copies, int) else None, full


def _queue(management: Management, name: str) -> dict[str, Any]:
    try:
        return management.queue(name)
    except NotFound:
        return {}
