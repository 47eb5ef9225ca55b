"""Replays in any state, as rows: without preparing or sending anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from delayboard.models import (
    BatchState,
    ItemState,
    ParkedMessage,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
)
from delayboard.models.replay import COUNTED, ENDED_BATCH
from topology.models import Broker, Work, WorkState

_WORKS = {
    BatchState.PREPARING: WorkState.RUNNING,
    BatchState.WAITING: WorkState.WAITING,
    BatchState.RUNNING: WorkState.RUNNING,
    BatchState.WATCHING: WorkState.WAITING,
    BatchState.PAUSED: WorkState.WAITING,
    BatchState.DONE: WorkState.DONE,
    BatchState.CANCELLED: WorkState.CANCELLED,
    BatchState.FAILED: WorkState.FAILED,
}


def a_route(batch: ReplayBatch, **stated: Any) -> ReplayRoute:
    values: dict[str, Any] = {
        "exchange": "",
        "routing_key": "orders",
        "why": "where it was published before it was first dead-lettered in orders",
        "verdict": "The message arrives in orders at once.",
        "ending": "delivered",
    }
    return ReplayRoute.objects.create(batch=batch, **(values | stated))


_SAID = {
    "unroutable": "No route: no binding takes it.",
    "loops": "The message would return to dead. The message arrives in dead at once.",
    "guarded": "It was replayed 3 times already. The message arrives in orders at once.",
    "full": "The message arrives in orders at once. “orders” has a maximum length of 600 "
    "messages, and 600 messages now.",
    "stuck": "The message is stuck after 5s: nobody takes it.",
}


def a_bad_route(batch: ReplayBatch, ending: str = "unroutable", **stated: Any) -> ReplayRoute:
    return a_route(
        batch,
        ending=ending,
        is_good=False,
        verdict=_SAID.get(ending, "It would not arrive."),
        **stated,
    )


def a_batch(
    broker: Broker,
    parked_messages: Sequence[ParkedMessage] = (),
    state: BatchState = BatchState.DRAFT,
    items: Sequence[ItemState] = (ItemState.PENDING,),
    **stated: Any,
) -> ReplayBatch:
    """An item for each message on one good route; the items' states come round in turn."""
    now = timezone.now()
    is_started = state not in (BatchState.PREPARING, BatchState.DRAFT)
    values: dict[str, Any] = {
        "description": "parked messages that were chosen",
        "state": state,
        "state_at": now,
        "selected": len(parked_messages),
        "started_at": now if is_started else None,
    }
    batch = ReplayBatch.objects.create(broker=broker, **(values | stated))
    if state in _WORKS:
        batch.work = _work(batch, state)
    route = a_route(batch, items_number=len(parked_messages)) if parked_messages else None
    rows = [
        _item(batch, parked_message, number, items[number % len(items)], route, now)
        for number, parked_message in enumerate(parked_messages)
    ]
    ReplayItem.objects.bulk_create(rows)
    for column in COUNTED:
        if column not in stated:
            setattr(batch, column, sum(row.state == column for row in rows))
    batch.save()
    return batch


def _work(batch: ReplayBatch, state: BatchState) -> Work:
    kind = "replay-prepare" if state == BatchState.PREPARING else "replay"
    ended_at = timezone.now() if state in ENDED_BATCH else None
    return Work.objects.create(
        kind=kind, subject=batch.pk, broker=batch.broker, state=_WORKS[state], ended_at=ended_at
    )


def _item(
    batch: ReplayBatch,
    parked_message: ParkedMessage,
    number: int,
    state: ItemState,
    route: ReplayRoute | None,
    at: datetime,
) -> ReplayItem:
    is_bad = state in (ItemState.RETURNED, ItemState.UNKNOWN, ItemState.FAILED)
    return ReplayItem(
        batch=batch,
        position=number + 1,
        parked_message=parked_message,
        route=route,
        message_id=parked_message.message_id,
        size=parked_message.size,
        state=state,
        attempts=0 if state in (ItemState.PENDING, ItemState.CANCELLED) else 1,
        error="No queue took it." if is_bad else "",
        ended_at=None if state in (ItemState.PENDING, ItemState.PUBLISHING) else at,
    )
