"""What is published in place of a changed message, from the message or its recorded copy."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.recorder.copies import STORED_BODY_BYTES, content_of
from delayboard.changes.point import exit_of
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from topology.broker.properties.read import read_properties
from topology.definitions import Definitions
from topology.message import DOUBLED_HEADER, Message, Publish, Route
from topology.transfer.prepare import prepare

# Marks what stands for a changed message. Of “x-opt-”: it changes no content id.
CHANGE_HEADER = "x-opt-delayboard-change"

NO_BODY = (
    "Delayboard has no body of this message, so it cannot publish a copy. Reschedule the message "
    "to a later time; for later messages, enable body storage on the page of the topology."
)
TOO_LARGE = (
    "The body of this message is larger than 64 KiB, so Delayboard did not store it and cannot "
    "publish a copy. Reschedule the message to a later time."
)
INCOMPLETE = (
    "Delayboard did not record every property of this message, so it cannot publish a copy."
)


def stated_headers(change: ScheduledChange) -> dict[str, str]:
    """The headers that say what a message stands for, and whether it may be there twice."""
    stated = {CHANGE_HEADER: str(change.pk)}
    is_begun = change.state == ChangeState.PUBLISHING or change.copy_begun_at is not None
    if is_begun or change.may_be_duplicated:
        # It was begun before, and nothing says that the broker did not get it.
        stated[DOUBLED_HEADER] = "1"
    return stated


def headers_of(row: ScheduledMessage) -> dict[str, Any]:
    """Those that were recorded; none where they cannot be read."""
    try:
        headers = json.loads(row.headers_json)
    except ValueError:
        return {}
    return headers if isinstance(headers, dict) else {}


def replacement(change: ScheduledChange, message: Message) -> tuple[Definitions, Publish]:
    """What to declare and to publish: with the same ids, now or with what is left of the delay.

    No binding is declared: the destination's is there, or is replaced just now. Raises ParamsError
    for a delay that the topology does not have, FieldError for properties that cannot be edited.
    """
    topology = change.topology
    stated = stated_headers(change)
    params = topology.parsed
    if change.kind == ChangeKind.DELIVER_NOW:
        exchange, key = exit_of(topology.pattern, params, change.destination)
        if topology.pattern.KEYS_DIFFER_BY_DELAY:
            key = message.routing_key
        route = Route(exchange, key)
    else:
        assert change.new_due_at is not None
        left = max(timedelta(0), change.new_due_at - timezone.now())
        # To the millisecond, as all delays are.
        left = timedelta(milliseconds=round(left / timedelta(milliseconds=1)))
        route = topology.pattern.route(params, left, change.destination)
    publish = prepare(route, message.properties, message.body, stated)
    return Definitions(queues=route.declares.queues), publish


def rebuild(row: ScheduledMessage) -> Message | str:
    """The message whose content has the recorded hash, or why there is none.

    Its properties are the bytes that were recorded, with every type and in their order.
    """
    if row.size > STORED_BODY_BYTES:
        return TOO_LARGE
    kept = ScheduledBody.objects.filter(message=row).first()
    if kept is None:
        return NO_BODY
    properties = read_properties(bytes(kept.properties))
    message = Message(row.exchange, row.routing_key, properties, bytes(kept.body))
    return message if content_of(message) == row.content_id else INCOMPLETE
