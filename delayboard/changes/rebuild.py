"""A waiting message made again from its recorded copy, if that is provably the same."""

from __future__ import annotations

import json
from itertools import product

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.recorder.copies import content_of
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties
from topology.message import Message

NOT_KEPT = (
    "Delayboard has no body of this message. Enable body storage on the page of its topology."
)
INCOMPLETE = (
    "Delayboard did not record every property of this message, so it cannot publish a copy."
)


def rebuild(row: ScheduledMessage) -> Message | str:
    """The message whose content has the recorded hash, or why there is none.

    A copy in the log has not every property: the hash of the whole tells whether one is missing.
    """
    kept = ScheduledBody.objects.filter(message=row).first()
    if kept is None:
        return NOT_KEPT
    body = bytes(kept.body)
    headers = json.loads(row.headers_json)
    for mode, app_id in product((2, 1), (None, row.published_by)):
        try:
            properties = build_properties(
                headers,
                message_id=row.message_id,
                correlation_id=row.correlation_id,
                content_type=row.content_type,
                delivery_mode=mode,
                app_id=app_id,
            )
        except FieldError:
            return INCOMPLETE
        message = Message(row.exchange, row.routing_key, properties, body)
        if content_of(message) == row.content_id:
            return message
    return INCOMPLETE
