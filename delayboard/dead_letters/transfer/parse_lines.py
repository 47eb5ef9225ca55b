"""Lines of an export, read back with distrust: a message to write, or what is wrong; pure."""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from analytics.events import clean
from delayboard.dead_letters.transfer.serialize import KIND, VERSION
from delayboard.models import ParkedState
from topology.broker.properties.read import read_properties
from topology.message import Message

# A body of 128 MiB, RabbitMQ's maximum, in base64, with the fields around it.
LONGEST_LINE = 200_000_000
# A frame of properties is 128 kB by default and can be made larger.
MOST_PROPERTIES = 1_000_000
LONGEST_NAME = 255
LONGEST_UID = 64
FIRST_YEAR = datetime(1000, 1, 1, tzinfo=UTC)


class LineError(ValueError):
    """The line is not a message; the sentence says why."""


@dataclass(frozen=True)
class Imported:
    """`uid` names it wherever it is imported; `local_id` is what it was called where it was
    parked, if that was here."""

    uid: str
    queue: str
    message: Message
    parked_at: datetime
    state: ParkedState
    note: str
    link: str

    @property
    def local_id(self) -> int | None:
        number = self.uid.partition("-")[0]
        return int(number) if number.isdecimal() and len(number) <= 18 else None


def read_line(line: bytes) -> Imported:
    """Raises LineError."""
    if len(line) > LONGEST_LINE:
        raise LineError("The line is longer than any exported line.")
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LineError(f"The line is not JSON: {error}.") from error
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise LineError("The line is not an exported dead letter.")
    if values.get("v") != VERSION:
        raise LineError(f"The version {_shorten(values.get('v'))} is not {VERSION}.")
    if values.get("masked") is not False:
        raise LineError(
            "Redaction rules hid parts of the message in the export, so it is incomplete."
        )
    message = Message(
        _name(values, "exchange"),
        _name(values, "routing_key"),
        read_properties(_properties(values)),
        _body(values),
        redelivered=values.get("redelivered") is True,
    )
    if values.get("content_id", message.content_id) != message.content_id:
        raise LineError("The content does not match the content_id, so the line was changed.")
    group = values.get("group")
    about = group if isinstance(group, dict) else {}
    return Imported(
        uid=_uid(values, line),
        queue=_name(values, "queue", is_needed=True),
        message=message,
        parked_at=_moment(values, "parked_at"),
        state=_state(values),
        note=_text(about, "note"),
        link=_text(about, "link"),
    )


def _shorten(value: object) -> str:
    """Returns at most 40 characters of a value, quoted for a sentence."""
    if isinstance(value, (dict, list)):
        return "(a list or object)"
    text = clean(value if not isinstance(value, str) else value[:40])
    return f"“{text[:40]}”"


def number_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line


def _uid(values: Mapping[str, Any], line: bytes) -> str:
    uid = values.get("uid")
    if uid is None:
        return hashlib.sha256(line.strip()).hexdigest()
    if not isinstance(uid, str) or not uid or len(uid) > LONGEST_UID or not uid.isascii():
        raise LineError(f"The uid is not a text of at most {LONGEST_UID} ASCII characters.")
    if not uid.isprintable():
        raise LineError("The uid contains characters that are not printable.")
    return uid


def _name(values: Mapping[str, Any], name: str, *, is_needed: bool = False) -> str:
    text = _text(values, name)
    if len(text.encode()) > LONGEST_NAME:
        raise LineError(f"The {name} is longer than {LONGEST_NAME} bytes.")
    if is_needed and not text:
        raise LineError(f"The line has no {name}.")
    return text


def _text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str):
        raise LineError(f"The {name} is not a text.")
    return text


def _properties(values: Mapping[str, Any]) -> bytes:
    if "properties_base64" not in values:
        raise LineError("The line has no properties_base64.")
    raw = _bytes(values, "properties_base64")
    if len(raw) > MOST_PROPERTIES:
        raise LineError("The properties are larger than an AMQP frame.")
    return raw


def _body(values: Mapping[str, Any]) -> bytes:
    if ("body_text" in values) == ("body_base64" in values):
        raise LineError("The line needs exactly one of body_text and body_base64.")
    if "body_base64" in values:
        return _bytes(values, "body_base64")
    return _text(values, "body_text").encode()


def _bytes(values: Mapping[str, Any], name: str) -> bytes:
    try:
        return b64decode(_text(values, name).encode(), validate=True)
    except binascii.Error as error:
        raise LineError(f"The {name} is not valid base64: {error}.") from error


def _moment(values: Mapping[str, Any], name: str) -> datetime:
    try:
        at = datetime.fromisoformat(_text(values, name))
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise LineError(f"The {name} is not a valid time.") from error
    if at < FIRST_YEAR:
        raise LineError(f"The {name} is before the year 1000.")
    return at


def _state(values: Mapping[str, Any]) -> ParkedState:
    """One that is on its way in a replay there is parked here: this database has no such replay."""
    try:
        state = ParkedState(values.get("state", ParkedState.PARKED))
    except ValueError as error:
        raise LineError(f"The state is not one of {', '.join(ParkedState.values)}.") from error
    is_in_flight = state in (ParkedState.REPLAYING, ParkedState.DELAYED)
    return ParkedState.PARKED if is_in_flight else state
