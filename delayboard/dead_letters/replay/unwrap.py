"""The message inside the envelope in which its client library published a failure: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties
from topology.clients.conventions import Convention
from topology.clients.describe import find_library
from topology.clients.parts import Parts
from topology.clients.restart import open_envelope
from topology.message import Properties

# As EasyNetQ names them (MessageProperties.cs) -> the properties of AMQP.
_TEXTS = {
    "ContentType": "content_type",
    "ContentEncoding": "content_encoding",
    "CorrelationId": "correlation_id",
    "ReplyTo": "reply_to",
    "MessageId": "message_id",
    "Type": "type",
    "AppId": "app_id",
}
_NUMBERS = {"DeliveryMode": ("delivery_mode", 2), "Priority": ("priority", 255)}


def unwrap(
    properties: Properties, body: bytes, own: Sequence[Convention] = ()
) -> tuple[Properties, bytes] | None:
    """None where the body is no envelope of a known library, or cannot be read.

    Without properties in the envelope the message keeps those that it has. An expiration and a user
    id are not taken over: the one is over, and RabbitMQ refuses the other.
    """
    library = find_library(Parts(properties.headers, body, ""), own)
    opened = open_envelope(library, body) if library is not None else None
    if opened is None:
        return None
    inside, stated = opened
    if not stated:
        return properties, inside
    headers = stated.get("Headers")
    found: dict[str, Any] = {
        ours: stated[theirs]
        for theirs, ours in _TEXTS.items()
        if isinstance(stated.get(theirs), str) and stated[theirs]
    }
    for theirs, (ours, most) in _NUMBERS.items():
        value = stated.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
            found[ours] = value
    try:
        return build_properties(headers if isinstance(headers, Mapping) else {}, **found), inside
    except FieldError:
        return None
