"""A waiting message made again from its recorded copy, if that is provably the same."""

from __future__ import annotations

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.recorder.copies import STORED_BODY_BYTES, content_of
from topology.broker.properties.read import read_properties
from topology.message import Message

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
