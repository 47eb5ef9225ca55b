"""A parked message as a line of JSON, and as a row for a spreadsheet; pure."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import orjson
from django.db.models import QuerySet

from analytics.events import clean
from delayboard.dead_letters.parked.redact_cause import hidden_columns, seen_parked_message
from delayboard.models import Body, ParkedMessage
from topology import audit, redaction
from topology.broker.properties.read import read_properties
from topology.content.export_format import LONGEST_CELL, compact_json, format_moment, write_export
from topology.message import Properties
from topology.models import Broker
from topology.redaction import HIDDEN, Redaction

VERSION = 1
KIND = "dead-letter"
COLUMNS = (
    "id",
    "queue",
    "state",
    "died_in",
    "reason",
    "published_exchange",
    "published_key",
    "exception",
    "message_type",
    "message_id",
    "deaths",
    "died_at",
    "parked_at",
    "size",
    "may_be_a_repeat",
    "content_type",
    "headers",
    "body",
)
DEEPEST = 100
# Messages, and bytes of bodies, that are read at a time; one larger body is read alone.
CHUNK = 500
CHUNK_BYTES = 8_000_000

ParkedMessages = QuerySet[ParkedMessage]
# Header of the API: how many messages may match, and are omitted until they are indexed.
NOT_INDEXED = "Delayboard-Not-Indexed"


def uid_of(parked_message: ParkedMessage) -> str:
    """What names a message in every export, also in one of where it was imported."""
    if parked_message.imported_uid:
        return parked_message.imported_uid
    parked_at = format_moment(parked_message.parked_at)
    content, queue = parked_message.content_id, parked_message.queue
    sentence = f"{parked_message.pk} {parked_at} {content} {queue}"
    return f"{parked_message.pk}-{hashlib.sha256(sentence.encode()).hexdigest()[:32]}"


def make_record(parked_message: ParkedMessage, body: bytes, hidden: Redaction) -> dict[str, Any]:
    """All of a message with its group, without loss; or, where rules hide something, with
    HIDDEN in its place and `masked` true."""
    properties = read_properties(bytes(parked_message.properties))
    columns = hidden_columns(hidden)
    uid, parked_message = uid_of(parked_message), seen_parked_message(parked_message, hidden)
    group = parked_message.group
    values = {
        "v": VERSION,
        "kind": KIND,
        "uid": uid,
        "broker": parked_message.broker.slug,
        "queue": parked_message.queue,
        "state": parked_message.state,
        "exchange": parked_message.exchange,
        "routing_key": parked_message.routing_key,
        "redelivered": parked_message.redelivered,
        "content_id": parked_message.content_id,
        "message_id": parked_message.message_id,
        "deaths": HIDDEN if "deaths" in columns else parked_message.deaths,
        "died_at": HIDDEN if "died_at" in columns else format_moment(parked_message.died_at),
        "parked_at": format_moment(parked_message.parked_at),
        "state_at": format_moment(parked_message.state_at),
        "repeat_of": parked_message.repeat_of_id,
        "size": parked_message.size,
        "group": {
            "fingerprint": HIDDEN if columns else group.fingerprint,
            "died_in": group.died_in,
            "parked_from": group.parked_from,
            "reason": group.reason,
            "exchange": group.exchange,
            "routing_key": group.routing_key,
            "exception": group.exception,
            "exception_message": group.exception_message,
            "message_type": group.message_type,
            "note": group.note,
            "link": group.link,
        },
        "masked": not hidden.is_empty,
        "properties": {name: plain(value) for name, value in properties.stated().items()},
        "headers": plain(hidden.headers(properties.headers)),
    }
    if hidden.is_empty:
        return values | {"properties_base64": _base64(properties.raw)} | _body(body)
    return values | _body(hidden.body(body))


def make_line(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(values) + b"\n"


def make_row(parked_message: ParkedMessage, body: bytes, hidden: Redaction) -> list[Any]:
    """The cells of a message, in the order of COLUMNS."""
    properties: Properties = read_properties(bytes(parked_message.properties))
    values = make_record(parked_message, b"", hidden)
    found = values | values["group"]
    found |= {
        "id": parked_message.pk,
        "published_exchange": values["group"]["exchange"],
        "published_key": values["group"]["routing_key"],
        "may_be_a_repeat": "yes" if parked_message.repeat_of_id else "",
        "content_type": clean(properties.content_type or ""),
        "headers": compact_json(values["headers"]),
        "body": _text(hidden.body(body)),
    }
    return [found[name] for name in COLUMNS]


def plain(value: Any, depth: int = 0) -> Any:
    """A header's value as JSON has it, for reading only: bytes and odd numbers become texts."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if -(2**53) <= value <= 2**53 else str(value)
    if isinstance(value, datetime):
        return format_moment(value)
    if isinstance(value, (bytes, bytearray)):
        return clean(value)
    if depth > DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {clean(name): plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return clean(value)


def _body(body: bytes) -> dict[str, str]:
    """The body as a text where it is one, else in base64."""
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": _base64(body)}


def _text(body: bytes) -> str:
    try:
        return clean(body.decode())
    except UnicodeDecodeError:
        return f"base64:{_base64(body[:LONGEST_CELL])}"


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def write_messages(
    form: str, parked_messages: ParkedMessages, hidden: Redaction
) -> Iterator[bytes]:
    return write_export(
        form,
        COLUMNS,
        read_messages(parked_messages),
        lambda pair: make_line(make_record(*pair, hidden)),
        lambda pair: make_row(*pair, hidden),
    )


def export_audited(
    user: Any, broker: Broker, form: str, query: str, rows: ParkedMessages
) -> Iterator[bytes]:
    """Write messages as `write_messages` does, as far as this user may see them, with an entry in
    the audit log.
    """
    hidden = redaction.rules_for(user, broker)
    details = {"format": form, "masked": not hidden.is_empty}
    audit.record(user, "parked messages exported", broker=broker, what=query, details=details)
    return write_messages(form, rows, hidden)


def read_messages(parked_messages: ParkedMessages) -> Iterator[tuple[ParkedMessage, bytes]]:
    """Each message with its body, the newest first."""
    rows = parked_messages.select_related("group", "broker").order_by("-pk")
    rest = rows
    while chunk := list(rest[:CHUNK]):
        for some in _pieces(chunk):
            keys = {row.body_id for row in some}
            bodies = dict(Body.objects.filter(pk__in=keys).values_list("pk", "data"))
            for row in some:
                yield row, bytes(bodies.get(row.body_id, b""))
        rest = rows.filter(pk__lt=chunk[-1].pk)


def _pieces(chunk: list[ParkedMessage]) -> Iterator[list[ParkedMessage]]:
    piece: list[ParkedMessage] = []
    size = 0
    for row in chunk:
        if piece and size + row.size > CHUNK_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.size
    if piece:
        yield piece
