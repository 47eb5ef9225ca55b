"""Asking for a parking, and who may be parked at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from analytics.events import clean
from delayboard.dead_letters.parked.park_queue import KIND
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.confirmed import STREAM, TAP
from delayboard.models import DeadLetterQueue, Parking
from topology import audit, work
from topology.definitions import Queue, is_tap
from topology.models import Broker
from topology.snapshot import Snapshot

MOST_CHOSEN = 200
HANDLE = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{8}\.[1-9][0-9]{0,5}", re.ASCII)


class ParkError(Exception):
    """Nothing was changed; the message says why."""


def refusal(row: DeadLetterQueue | None, queue: Queue | None) -> str:
    """Pure: why no message may be taken from this queue; "" when some may.

    `row` is a person's word on it, `queue` what the broker has of this name.
    """
    if queue is None:
        return "The broker has no queue with this name."
    if is_tap(queue.name):
        return TAP
    if queue.type == "stream":
        return STREAM
    if queue.type not in ("classic", "quorum"):
        return f"Delayboard cannot take messages from queues of type “{queue.type}”."
    if row is None or not row.is_confirmed:
        return "This queue is not marked as a dead-letter queue. Mark the queue first."
    return ""


def warning(queue: Queue, snapshot: Snapshot) -> str:
    """A warning to show before parking; "" for none."""
    numbers = snapshot.numbers.get(queue.name)
    if numbers and numbers.consumers:
        return (
            f"“{queue.name}” has {numbers.consumers} consumers. RabbitMQ divides new messages "
            "between them and Delayboard."
        )
    return ""


def set_automatic_parking(
    user: Any, broker: Broker, name: str, snapshot: Snapshot | None, *, on: bool
) -> str:
    """Switch automatic parking of a queue; returns a warning, or "". Raises ParkError."""
    row = DeadLetterQueue.objects.filter(broker=broker, queue=name).first()
    sentence = ""
    if on:
        queue = _queue(row, snapshot, name)
        sentence = warning(queue, snapshot) if snapshot else ""
    elif row is None:
        raise ParkError("This queue is not parked automatically.")
    if row is None or row.parks_automatically == on:
        return sentence
    with transaction.atomic():
        row.parks_automatically, row.watched_by, row.watched_at = on, user, timezone.now()
        row.save(update_fields=["parks_automatically", "watched_by", "watched_at"])
        action = f"automatic parking {'started' if on else 'stopped'}"
        audit.record(user, action, broker=broker, what=name)
    return sentence


def park_all(user: Any, broker: Broker, name: str, snapshot: Snapshot | None) -> Parking:
    """Request the parking of all messages in the queue now. Raises ParkError."""
    row = DeadLetterQueue.objects.filter(broker=broker, queue=name).first()
    _queue(row, snapshot, name)
    return _create_parking(user, broker, name, None)


def park_these(
    user: Any, broker: Broker, name: str, snapshot: Snapshot | None, handles: Sequence[str]
) -> Parking:
    """Request the parking of messages selected from a peek. Raises ParkError."""
    row = DeadLetterQueue.objects.filter(broker=broker, queue=name).first()
    queue = _queue(row, snapshot, name)
    chosen = list(dict.fromkeys(handles))
    if not chosen or len(chosen) > MOST_CHOSEN or not all(map(HANDLE.fullmatch, chosen)):
        raise ParkError(f"Select 1 to {MOST_CHOSEN} messages of the list.")
    if snapshot is not None:
        allowed = peek.permission(queue, snapshot)
        if not allowed.allowed or allowed.budget is not None:
            raise ParkError(
                "Parking single messages harms the others in this queue. Park the whole queue."
            )
    return _create_parking(user, broker, name, chosen)


def cancel(user: Any, parking: Parking) -> None:
    """What is not parked yet stays where it is. Raises ParkError when it has ended."""
    if parking.work is None or parking.is_ended:
        raise ParkError("This parking is not running.")
    work.cancel(parking.work)
    audit.record(
        user,
        "parking cancelled",
        broker=parking.broker,
        what=parking.queue,
        details={"parking": parking.pk},
    )


def _queue(row: DeadLetterQueue | None, snapshot: Snapshot | None, name: str) -> Queue:
    """Raises ParkError."""
    if snapshot is None:
        raise ParkError(
            "The broker does not answer, so Delayboard cannot check the queue. Try again later."
        )
    queue = snapshot.definitions.queue(name)
    if why := refusal(row, queue):
        raise ParkError(why)
    assert queue is not None
    return queue


def _create_parking(user: Any, broker: Broker, name: str, handles: list[str] | None) -> Parking:
    number = None if handles is None else len(handles)
    with transaction.atomic():
        parking = Parking.objects.create(
            broker=broker, queue=clean(name), handles=handles, requested=number, created_by=user
        )
        parking.work = work.create(KIND, parking.pk, broker=broker, user=user, total=number or 0)
        parking.save(update_fields=["work"])
        audit.record(
            user,
            "parking started",
            broker=broker,
            what=name,
            details={"parking": parking.pk, "messages": "all" if number is None else number},
        )
    return parking
