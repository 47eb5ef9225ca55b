"""Parked messages to look at: groups of them, single ones, and what is done with many."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User

from delayboard.models import (
    DeadLetterQueue,
    MessageGroup,
    ParkedChange,
    ParkedMessage,
    ParkedState,
    Parking,
    QueueDepth,
    RedactionKind,
    RedactionRule,
    SavedView,
)
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from topology.models import Broker, ClientConvention, Role, Work, WorkState

REASONS = ("rejected", "delivery_limit", "maxlen", "expired")


def groups(broker: Broker, user: User, queue: str, names: list[str]) -> MessageGroup:
    """One for each name, of messages that lay in this queue, which is confirmed; the last of them.

    The first died a day before the last, and people wrote about the last.
    """
    now = datetime.now(UTC)
    row = DeadLetterQueue.objects.create(
        broker=broker, queue=queue, is_confirmed=True, decided_by=user, decided_at=now
    )
    QueueDepth.objects.create(queue=row, at=now - timedelta(minutes=61), messages=1)
    for number, name in enumerate(names):
        died_at = now - timedelta(days=1) * (len(names) - number) / len(names)
        death = a_death(name, REASONS[number % 4], exchange=name, first_at=died_at)
        headers = deaths_header(death) | {"x-exception-type": name, "__TypeId__": name}
        parked_messages = [a_message(b"%d" % one, headers) for one in range(1 + number % 5)]
        parked(broker, *parked_messages, queue=queue, at=now)
    group = MessageGroup.objects.filter(broker=broker).order_by("-pk")[0]
    group.note, group.owner = f"Known since Monday.\n{names[0]}", user
    group.link = "https://tracker.test/1"
    group.save()
    return group


def storied(broker: Broker, queue: str, names: list[str]) -> ParkedMessage:
    """One with a body to unfold, that went round between these queues before it was parked."""
    now = datetime.now(UTC)
    deaths = [
        a_death(name, REASONS[number % 4], count=1 + number, first_at=now - timedelta(hours=number))
        for number, name in enumerate(names[:6])
    ]
    body = {"order": {"id": 42, "lines": [{"sku": name, "price": 9.5} for name in names[:6]]}}
    headers = deaths_header(*deaths) | {"tenant": names[0], "x-trace": {"id": b"\x00\xff", "n": 7}}
    message = a_message(
        json.dumps(body).encode(), headers, content_type="application/json", message_id=names[0]
    )
    return parked(broker, message, queue=queue, at=now)[0]


def unknown_library(broker: Broker, user: User, queue: str, names: list[str]) -> MessageGroup:
    """Messages that only headers of an unknown library explain, and conventions for others."""
    for name in names[:3]:
        text = (
            f"name = {json.dumps(name[:60])}\n"
            'known_by = [["/headers/x-of", "/headers/x-from"]]\n'
            f"[facts]\nqueue = {json.dumps('/headers/' + name[:200])}\n"
        )
        ClientConvention.objects.create(broker=broker, name=name[:60], text=text, saved_by=user)
    headers = {
        "x-src-queue": names[0],
        "x-why": f"{names[0]}: no answer",
        "x-tries": 2,
        "x-order": "17",
    }
    messages = [a_message(b"%d" % one, headers) for one in range(3)]
    return parked(broker, *messages, queue=queue, at=datetime.now(UTC))[0].group


def binary(broker: Broker, queue: str) -> ParkedMessage:
    message = a_message(bytes(range(256)), {}, content_type="application/x-protobuf")
    return parked(broker, message, queue=queue, at=datetime.now(UTC))[0]


def rules(broker: Broker, user: User, names: list[str]) -> None:
    """What is hidden from whom, and the views that people share."""
    for number, name in enumerate(names):
        kind = RedactionKind.values[number % 2]
        RedactionRule.objects.create(
            broker=broker, kind=kind, pattern=f"secret-{name}"[:255], least_role=Role.OPERATOR
        )
        SavedView.objects.create(
            broker=broker, name=name[:100], query=f"queue:{number}", created_by=user
        )


def parking(broker: Broker, queue: str, state: WorkState, error: str = "") -> Parking:
    row = Parking.objects.create(broker=broker, queue=queue, requested=1204, parked=397, repeats=2)
    row.work = _work("park", row.pk, broker, state, error)
    row.save()
    return row


def change(broker: Broker, state: WorkState, error: str = "") -> ParkedChange:
    row = ParkedChange.objects.create(
        broker=broker,
        to_state=ParkedState.DISCARDED,
        query="reason:expired",
        newest=10**6,
        requested=20_000,
        changed=5000,
    )
    row.work = _work("parked_messages", row.pk, broker, state, error)
    row.save()
    return row


def _work(kind: str, subject: int, broker: Broker, state: WorkState, error: str) -> Work:
    is_ended = state in (WorkState.DONE, WorkState.FAILED, WorkState.CANCELLED)
    return Work.objects.create(
        kind=kind,
        subject=subject,
        broker=broker,
        state=state,
        error=error,
        done=397,
        total=1204,
        ended_at=datetime.now(UTC) if is_ended else None,
    )
