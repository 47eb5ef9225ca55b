"""A line of an import of timeouts -> a message for delay levels, or why there is none: pure.

docs/timeouts.md is the format for people.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import IO, Any
from uuid import UUID

from analytics.recorder.copies import NSERVICEBUS_TIME
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties, strip_for_replay
from topology.content.text import is_encodable, make_encodable
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish, Route
from topology.patterns.delay_levels.params import Params
from topology.patterns.delay_levels.pattern import delay_levels

LONGEST_LINE = 64 * 1024 * 1024
TEXTS = (
    "message_id",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
)
NUMBERS = ("priority", "timestamp")
FIELDS = frozenset(
    {"destination", "due_at", "due_at_ms", "body", "body_base64", "headers", *TEXTS, *NUMBERS}
)
# What NServiceBus puts into headers and its RabbitMQ transport into properties too.
FROM_HEADERS = {
    "message_id": "NServiceBus.MessageId",
    "content_type": "NServiceBus.ContentType",
    "correlation_id": "NServiceBus.CorrelationId",
}
# Without it `rabbitmq-transport delays transfer` takes a message for poison (nservicebus.md §2).
NSERVICEBUS_DELAY = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
NSERVICEBUS_SENT = "NServiceBus.TimeSent"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Malformed(Exception):
    """The line is not a timeout; the message says why in one sentence."""


@dataclass(frozen=True)
class Timeout:
    """A message that is due at a moment (UTC); `properties` by their AMQP names."""

    destination: str
    due_at: datetime
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message_id(self) -> str:
        """Its own; "" when it has none."""
        stated: str = self.properties.get("message_id", "")
        return stated


def numbered_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1.

    One over LONGEST_LINE bytes comes cut off, one byte too long.
    """
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        rest = line
        while len(line) > LONGEST_LINE and rest and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, line.strip() if len(line) <= LONGEST_LINE else line


def read_line(line: bytes) -> Timeout:
    """Raises Malformed."""
    values = _object(line)
    headers = values.get("headers", {})
    if not isinstance(headers, dict):
        raise Malformed("The “headers” are not a JSON object.")
    return Timeout(
        _destination(values), _due_at(values), _body(values), headers, _properties(values, headers)
    )


def line_digest(line: bytes) -> str:
    """Equal lines have the same."""
    return hashlib.sha256(line).hexdigest()


def line_key(timeout: Timeout, file_name: str, digest: str, nth: int) -> str:
    """What a timeout is known by when it comes again (64 hex digits).

    Its message id with its destination, since one message can wait for several; without an id
    the file's name and the line's digest, `nth` (from 0) of its equals.
    """
    parts = ["line", file_name, digest, str(nth)]
    if timeout.message_id:
        parts = ["message", timeout.message_id, timeout.destination]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def route_at(params: Params, timeout: Timeout, now: datetime) -> Route:
    """The way that takes what is left at `now`; at once when it is due already.

    Raises ParamsError when it is longer than the levels reach, or the destination's name is.
    """
    return delay_levels.route(params, max(timeout.due_at - now, timedelta(0)), timeout.destination)


def publish_at(
    params: Params, timeout: Timeout, route: Route, tracking_id: UUID, now: datetime
) -> Publish:
    """The message as it goes out, persistent, with Delayboard's headers and without those of a
    former way through a broker, as a replay has them. Raises FieldError."""
    stated = {"delivery_mode": 2, "message_id": str(tracking_id), **timeout.properties}
    ours: dict[str, Any] = {
        **_nservicebus_delay(params, timeout, now),
        TRACKING_HEADER: str(tracking_id),
        PUBLISHED_AT_HEADER: (now - _EPOCH) // timedelta(milliseconds=1),
    }
    try:
        properties = strip_for_replay(build_properties(timeout.headers, **stated), ours)
    except RecursionError as error:
        raise FieldError("The headers are nested too deeply.") from error
    return Publish(route.exchange, route.routing_key, properties, timeout.body)


def _nservicebus_delay(params: Params, timeout: Timeout, now: datetime) -> dict[str, int]:
    """Seconds from the sending that the message states to its due time: Particular's tool adds
    the two up again."""
    if not params.preset.startswith("nsb"):
        return {}
    try:
        text = timeout.headers[NSERVICEBUS_SENT]
        sent_at = datetime.strptime(text, NSERVICEBUS_TIME).replace(tzinfo=UTC)
    except (KeyError, TypeError, ValueError):
        sent_at = now
    return {NSERVICEBUS_DELAY: -((sent_at - timeout.due_at) // timedelta(seconds=1))}


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise Malformed(f"The line is larger than {LONGEST_LINE >> 20} MiB.")
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise Malformed("The line is not UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"The line is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise Malformed("The line is not a JSON object.")
    # What a database exports as null was not stated.
    values = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(set(values) - FIELDS):
        raise Malformed(f"The line has an unknown field “{make_encodable(unknown[0])}”.")
    return values


def _destination(values: Mapping[str, Any]) -> str:
    destination = values.get("destination")
    if not isinstance(destination, str) or not destination:
        raise Malformed("The line has no “destination”.")
    if not is_encodable(destination):
        raise Malformed("The “destination” contains a character that is not valid Unicode.")
    return destination


def _due_at(values: Mapping[str, Any]) -> datetime:
    text, ms = values.get("due_at"), values.get("due_at_ms")
    if (text is None) == (ms is None):
        raise Malformed("The line needs either “due_at” or “due_at_ms”.")
    try:
        if ms is not None:
            if not isinstance(ms, int) or isinstance(ms, bool):
                raise Malformed("The “due_at_ms” is not a whole number of milliseconds since 1970.")
            return _EPOCH + timedelta(milliseconds=ms)
        read = datetime.fromisoformat(str(text))
        if read.tzinfo is None:
            raise Malformed("The “due_at” has no time zone. Add Z for UTC.")
        return read.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed("The due time is not a valid time such as 2027-01-31T08:00:00Z.") from error


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


def _properties(values: Mapping[str, Any], headers: Mapping[str, Any]) -> dict[str, Any]:
    stated = {name: values[name] for name in (*TEXTS, *NUMBERS) if name in values}
    for name, value in stated.items():
        if name in NUMBERS and (not isinstance(value, int) or isinstance(value, bool)):
            raise Malformed(f"The “{name}” is not a whole number.")
        if name in TEXTS and not isinstance(value, str):
            raise Malformed(f"The “{name}” is not a text.")
    for name, header in FROM_HEADERS.items():
        if _is_empty(stated.get(name, "")) and isinstance(headers.get(header), str):
            stated[name] = headers[header]
    return {name: value for name, value in stated.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    """What a database exports for no text: nothing, or as many blanks as its column is wide."""
    return isinstance(value, str) and not value.strip()
