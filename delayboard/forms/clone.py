"""The publish form filled with a message that was seen: a copy with a message id of its own."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from delayboard.dead_letters.parked.redact_cause import hidden_columns
from delayboard.dead_letters.replay.edit_headers import (
    EditError,
    HeaderRow,
    explain_lock,
    read_headers,
)
from topology.deaths import read_history
from topology.delays import format_delay
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Message
from topology.redaction import Redaction

# A longer body is slow in a form.
LARGEST_BODY = 500_000
COPIED = ("content_type", "content_encoding", "correlation_id", "reply_to", "type", "app_id")
# Digits; RabbitMQ takes no longer one.
LONGEST_TTL = 10
OWN_HEADERS = frozenset({TRACKING_HEADER, PUBLISHED_AT_HEADER})


@dataclass(frozen=True)
class Clone:
    """Values of the form by field, and sentences about what they do not contain."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def clone_message(message: Message, rules: Redaction) -> Clone:
    """To where the message was published before its first death, if no rule hides that. Never
    raises.
    """
    rows, header_notes = _header_rows(message, rules)
    body, body_notes = _body(message, rules)
    deaths = read_history(rules.headers(message.headers)).deaths
    first = deaths[0] if deaths else None
    properties = message.properties
    target = {
        "exchange": first.exchange if first else message.exchange,
        "routing_key": first.routing_key if first else message.routing_key,
    }
    hidden = hidden_columns(rules).intersection(target)
    values: dict[str, Any] = {
        "mode": "exchange",
        **target,
        **dict.fromkeys(hidden, ""),
        "headers": rows,
        "persistent": properties.delivery_mode == 2,
        "priority": properties.priority,
        **body,
        **{name: getattr(properties, name) or "" for name in COPIED},
    }
    ttl = properties.expiration or ""
    if ttl.isdecimal() and len(ttl) <= LONGEST_TTL:
        values["expiration"] = format_delay(timedelta(milliseconds=int(ttl)))
    return Clone(values, (*_target_notes(hidden), *header_notes, *body_notes))


def _target_notes(hidden: Set[str]) -> list[str]:
    names = ", ".join(sorted(hidden)).replace("_", " ")
    return [f"Fields that a redaction rule hides are not copied: {names}."] if hidden else []


def _header_rows(message: Message, rules: Redaction) -> tuple[list[HeaderRow], list[str]]:
    """Without what RabbitMQ and Delayboard set, and without what is hidden or cannot be typed."""
    try:
        found = read_headers(message.properties.raw)
    except EditError as error:
        return [], [f"The headers are not copied: {error}"]
    headers = message.headers
    rows, omitted = [], []
    for one in found:
        if one.name in OWN_HEADERS or explain_lock(one.name):
            continue
        seen = {one.name: headers.get(one.name)}
        # A form changes the ends of lines.
        if one.lock or "\r" in one.text or rules.headers(seen) != seen:
            omitted.append(one.name)
        else:
            rows.append(one)
    if not omitted:
        return rows, []
    return rows, [
        f"Headers that are hidden or cannot be typed are not copied: {', '.join(omitted)}."
    ]


def _body(message: Message, rules: Redaction) -> tuple[dict[str, str], list[str]]:
    body = message.body
    if rules.body_paths and body:
        return {}, ["A redaction rule hides parts of bodies from you, so the body is not copied."]
    if len(body) > LARGEST_BODY:
        return {}, ["The body is larger than 500 kB, so it is not copied. Select it as a file."]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    # A form changes the ends of lines, and takes no NUL.
    if "\0" in text or "\r" in text:
        return {"body_format": "base64", "body": b64encode(body).decode()}, []
    return {"body_format": "text", "body": text}, []
