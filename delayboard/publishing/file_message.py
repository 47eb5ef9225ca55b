"""A message of a file: what a line of JSON says is published, where to, and when it is due.

docs/timeouts.md is the format for people. A mapping reads the lines of another product.
"""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from analytics.recorder.copies import NSERVICEBUS_TIME
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.broker.properties.read import build_properties
from topology.content.text import is_encodable, make_encodable
from topology.message import TRACKING_HEADER, Publish, Route
from topology.patterns.delay_levels.params import Params
from topology.transfer.prepare import prepare

LONGEST_LINE = 64 * 1024 * 1024
TEXTS = (
    *("message_id", "content_type", "content_encoding", "correlation_id"),
    *("reply_to", "type", "app_id"),
)
NUMBERS = ("priority", "timestamp")
FIELDS = frozenset({"destination", "due_at", "body", "body_base64", "headers", *TEXTS, *NUMBERS})
MAPPINGS = Path(__file__).parent / "mappings"
# Header without which `rabbitmq-transport delays transfer` takes a message for poison
# (nservicebus.md §2).
NSERVICEBUS_DELAY = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
NSERVICEBUS_SENT = "NServiceBus.TimeSent"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Malformed(Exception):
    """The line is no message; the text says why in one sentence."""


@dataclass(frozen=True)
class FileMapping:
    """How lines of another product are read.

    `fields`: the name that a line has for each of FIELDS; without any, the names are our own, and
    others are refused. `properties`: the header that a property is taken from.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    destination_ends_at: str = ""
    due_without_zone_is_utc: bool = False


@dataclass(frozen=True)
class FileMessage:
    """A message that is due at a moment (UTC); `properties` by their AMQP names."""

    destination: str
    due_at: datetime
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message_id(self) -> str:
        """The message's own id; "" when it has none."""
        stated: str = self.properties.get("message_id", "")
        return stated


PLAIN = FileMapping()


def read_mapping(name: str) -> FileMapping:
    """One that ships, by its name, or a TOML file. Raises ValueError with a sentence."""
    shipped = MAPPINGS / f"{name}.toml"
    try:
        path = shipped if shipped.exists() else Path(name)
        mapping = FileMapping(**tomllib.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"“{name}” is no mapping: {error}.") from error
    if unknown := {*mapping.fields, *mapping.properties} - FIELDS:
        raise ValueError(f"“{name}” maps the unknown field “{min(unknown)}”.")
    return mapping


def read_line(line: bytes, mapping: FileMapping = PLAIN) -> FileMessage:
    """Raises Malformed."""
    values = _object(line, mapping)
    headers = _headers(values)
    destination = values.get("destination")
    if isinstance(destination, str) and mapping.destination_ends_at:
        destination = destination.partition(mapping.destination_ends_at)[0]
    if not isinstance(destination, str) or not destination:
        raise Malformed("The line has no “destination”.")
    if not is_encodable(destination):
        raise Malformed("The “destination” contains a character that is not valid Unicode.")
    return FileMessage(
        destination,
        _due_at(values, mapping),
        _body(values),
        headers,
        _properties(values, headers, mapping),
    )


def make_publish(
    params: Params,
    message: FileMessage,
    route: Route,
    tracking_id: UUID,
    now: datetime,
    *,
    may_be_duplicated: bool,
) -> Publish:
    """The message as it goes out, persistent, with Delayboard's headers and without those of a
    former way through a broker. Raises FieldError."""
    stated = {"delivery_mode": 2, "message_id": str(tracking_id), **message.properties}
    headers = {name: value for name, value in message.headers.items() if not is_excluded(name)}
    stamp = {**_nservicebus_delay(params, message, now), TRACKING_HEADER: str(tracking_id)}
    try:
        return prepare(
            route,
            build_properties(headers, **stated),
            message.body,
            stamp,
            is_new=True,
            may_be_duplicated=may_be_duplicated,
        )
    except RecursionError as error:
        raise FieldError("The headers are nested too deeply.") from error


def _nservicebus_delay(params: Params, message: FileMessage, now: datetime) -> dict[str, int]:
    """Seconds from the sending that the message states to its due time: Particular's tool adds
    the two up again."""
    if not params.preset.startswith("nsb"):
        return {}
    try:
        text = message.headers[NSERVICEBUS_SENT]
        sent_at = datetime.strptime(text, NSERVICEBUS_TIME).replace(tzinfo=UTC)
    except (KeyError, TypeError, ValueError):
        sent_at = now
    return {NSERVICEBUS_DELAY: -((sent_at - message.due_at) // timedelta(seconds=1))}


def _object(line: bytes, mapping: FileMapping) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise Malformed(f"The line is larger than {LONGEST_LINE >> 20} MiB.")
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Malformed("The line is not UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"The line is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise Malformed("The line is not a JSON object.")
    # What a database exports as null was not stated.
    values = {name: value for name, value in values.items() if value is not None}
    if mapping.fields:
        names = mapping.fields.items()
        return {name: values[theirs] for name, theirs in names if theirs in values}
    if unknown := sorted(set(values) - FIELDS):
        raise Malformed(f"The line has an unknown field “{make_encodable(unknown[0])}”.")
    return values


def _headers(values: Mapping[str, Any]) -> dict[str, Any]:
    headers = values.get("headers", {})
    if isinstance(headers, str):
        with suppress(ValueError, RecursionError):
            headers = json.loads(headers or "{}")
    if not isinstance(headers, dict):
        raise Malformed("The “headers” are not a JSON object.")
    return headers


def _due_at(values: Mapping[str, Any], mapping: FileMapping) -> datetime:
    stated = values.get("due_at")
    try:
        if isinstance(stated, int) and not isinstance(stated, bool):
            return _EPOCH + timedelta(milliseconds=stated)
        read = datetime.fromisoformat(str(stated))
        if read.tzinfo is None and not mapping.due_without_zone_is_utc:
            raise Malformed("The “due_at” has no time zone. Add Z for UTC.")
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(
            "The “due_at” is neither a time such as 2027-01-31T08:00:00Z nor milliseconds since "
            "1970."
        ) from error


def _body(values: Mapping[str, Any]) -> bytes:
    text, encoded = values.get("body"), values.get("body_base64")
    if (text is None) == (encoded is None):
        raise Malformed('The line needs either “body” or “body_base64”. An empty body is "".')
    stated = encoded if text is None else text
    if not isinstance(stated, str):
        raise Malformed("The body is not a string.")
    try:
        return base64.b64decode(stated, validate=True) if text is None else stated.encode()
    except UnicodeEncodeError as error:
        raise Malformed("The “body” contains a character that is not valid Unicode.") from error
    except ValueError as error:
        raise Malformed("The “body_base64” is not valid Base64.") from error


def _properties(
    values: Mapping[str, Any], headers: Mapping[str, Any], mapping: FileMapping
) -> dict[str, Any]:
    stated = {name: values[name] for name in (*TEXTS, *NUMBERS) if name in values}
    for name, value in stated.items():
        if name in NUMBERS and (not isinstance(value, int) or isinstance(value, bool)):
            raise Malformed(f"The “{name}” is not a whole number.")
        if name in TEXTS and not isinstance(value, str):
            raise Malformed(f"The “{name}” is not a text.")
    for name, header in mapping.properties.items():
        if _is_empty(stated.get(name, "")) and isinstance(headers.get(header), str):
            stated[name] = headers[header]
    return {name: value for name, value in stated.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    """What a database exports for no text: nothing, or as many blanks as its column is wide."""
    return isinstance(value, str) and not value.strip()
