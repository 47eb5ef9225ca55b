"""A parked letter as a line of JSON, and as a row for a spreadsheet; pure."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from analytics.events import clean
from delayboard.dead_letters.parked.redact_cause import hidden_columns, seen_letter
from delayboard.models import DeadLetter
from topology.broker.properties.read import read_properties
from topology.content.export_format import LONGEST_CELL, compact_json, format_moment
from topology.message import Properties
from topology.redaction import HIDDEN, Masks

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


def uid_of(letter: DeadLetter) -> str:
    """What names a letter in every export, also in one of where it was imported."""
    if letter.imported_uid:
        return letter.imported_uid
    told = f"{letter.pk} {format_moment(letter.parked_at)} {letter.content_id} {letter.queue}"
    return f"{letter.pk}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def record(letter: DeadLetter, body: bytes, hidden: Masks) -> dict[str, Any]:
    """All of a letter with its group, without loss; or, where rules hide something, with
    HIDDEN in its place and `masked` true."""
    properties = read_properties(bytes(letter.properties))
    columns = hidden_columns(hidden)
    uid, letter = uid_of(letter), seen_letter(letter, hidden)
    group = letter.group
    told = {
        "v": VERSION,
        "kind": KIND,
        "uid": uid,
        "broker": letter.broker.slug,
        "queue": letter.queue,
        "state": letter.state,
        "exchange": letter.exchange,
        "routing_key": letter.routing_key,
        "redelivered": letter.redelivered,
        "content_id": letter.content_id,
        "message_id": letter.message_id,
        "deaths": HIDDEN if "deaths" in columns else letter.deaths,
        "died_at": HIDDEN if "died_at" in columns else format_moment(letter.died_at),
        "parked_at": format_moment(letter.parked_at),
        "state_at": format_moment(letter.state_at),
        "repeat_of": letter.repeat_of_id,
        "size": letter.size,
        "group": {
            "fingerprint": HIDDEN if columns else group.fingerprint,
            "died_in": group.died_in,
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
        return told | {"properties_base64": _base64(properties.raw)} | _body(body)
    return told | _body(hidden.body(body))


def line(told: Mapping[str, Any]) -> bytes:
    return orjson.dumps(told) + b"\n"


def row(letter: DeadLetter, body: bytes, hidden: Masks) -> list[Any]:
    """By COLUMNS."""
    properties: Properties = read_properties(bytes(letter.properties))
    columns = hidden_columns(hidden)
    group = seen_letter(letter, hidden).group
    headers = plain(hidden.headers(properties.headers))
    return [
        letter.pk,
        letter.queue,
        letter.state,
        group.died_in,
        group.reason,
        group.exchange,
        group.routing_key,
        group.exception,
        group.message_type,
        letter.message_id,
        HIDDEN if "deaths" in columns else letter.deaths,
        HIDDEN if "died_at" in columns else format_moment(letter.died_at),
        format_moment(letter.parked_at),
        letter.size,
        "yes" if letter.repeat_of_id else "",
        clean(properties.content_type or ""),
        compact_json(headers),
        _text(hidden.body(body)),
    ]


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
    """As a text where it is one, else in base64."""
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
