"""MessageEvent: one event of a message, and one line of the event log.

Fields are only ever added, at the end; a reader ignores unknown fields and uses the default for
missing ones, so that lines of every release stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from types import NoneType
from typing import Any, Literal, TypeAlias, TypedDict, cast

import orjson

from topology.content.text import make_encodable
from topology.deaths import History

VERSION = 1
HEADERS_LIMIT_BYTES = 8192
VALUE_LIMIT_CHARACTERS = 1000
LONGEST_TEXT = 255
NESTING_LIMIT = 6
# Largest number that a column of PostgreSQL takes.
LARGEST_NUMBER = 2**31 - 1
# Fields that every event has; any other field has its default.
NEEDED = ("event_id", "kind", "recorded_at", "broker")
# Most failures of an event: a client can write any number of them into x-death.
MOST_FAILURES = 100
DEATHS_HEADER = "x-death"
# Begin of the ids of lines from a tracing plugin's file: their times are by that plugin's clock.
TRACE_ID = "trace:"
# Source of the events of probes, which only their own figures count.
PROBE = "probe"

# Largest time before the due time, in milliseconds, that does not prove that a message was early: a
# thread stamps the two recordings when it gets its turn, tens of milliseconds late on a busy
# machine.
CLOCK_RESOLUTION_MS = 50

Kind: TypeAlias = Literal[
    "scheduled",
    "delivered",
    "died",
    "cancelled",
    "moved",
    "parked",
    "replayed",
    "discarded",
    "restored",
    "published",
    "returned",
]
FieldType: TypeAlias = Literal[
    "text", "integer", "boolean", "moment", "moment or null", "list of failures"
]


class Failure(TypedDict):
    """An entry of x-death that is no mere end of a delay; `began_s`, the time of the first of its
    `count` deaths, is in seconds since 1970.
    """

    queue: str
    reason: str
    count: int
    began_s: int | None


class EventError(ValueError):
    """A line that is not an event; the message says what is wrong with it."""


@dataclass(kw_only=True)
class MessageEvent:
    """Never changed, though not frozen: that would take three times as long to make, and one
    is made for every message.

    Moments are aware and UTC, to the microsecond; `_ms` are whole milliseconds.

    `due_at` is set on `scheduled` only. `attempt` numbers the trips through the delay from
    1. `deaths` is the total of all x-death counts. `headers_json` is always a JSON object.
    `body_base64` and `properties_base64`, the bytes of the AMQP properties, are "" unless bodies
    are kept for the topology.
    """

    v: int = VERSION
    event_id: str
    kind: Kind
    recorded_at: datetime
    caught_up: bool
    source: str
    broker: str
    vhost: str = ""
    topology: str = ""
    pattern: str = ""
    exchange: str = ""
    routing_key: str = ""
    queue: str = ""
    destination: str = ""
    message_id: str = ""
    correlation_id: str = ""
    content_id: str = ""
    requested_delay_ms: int = 0
    published_at: datetime | None = None
    published_at_source: str = ""
    due_at: datetime | None = None
    attempt: int = 0
    replay_id: str = ""
    exception_type: str = ""
    death_reason: str = ""
    death_queue: str = ""
    deaths: int = 0
    redelivered: bool = False
    size_bytes: int = 0
    headers_json: str = "{}"
    tracking_id: str = ""
    published_by: str = ""
    content_type: str = ""
    body_base64: str = ""
    properties_base64: str = ""
    failures: tuple[Failure, ...] = ()
    publisher_version: str = ""

    @property
    def key(self) -> str:
        """What names the message on its way: its message id, else the hash of its content."""
        return self.message_id or self.content_id


FIELDS: dict[str, FieldType] = {
    "v": "integer",
    "event_id": "text",
    "kind": "text",
    "recorded_at": "moment",
    "caught_up": "boolean",
    "source": "text",
    "broker": "text",
    "vhost": "text",
    "topology": "text",
    "pattern": "text",
    "exchange": "text",
    "routing_key": "text",
    "queue": "text",
    "destination": "text",
    "message_id": "text",
    "correlation_id": "text",
    "content_id": "text",
    "requested_delay_ms": "integer",
    "published_at": "moment or null",
    "published_at_source": "text",
    "due_at": "moment or null",
    "attempt": "integer",
    "replay_id": "text",
    "exception_type": "text",
    "death_reason": "text",
    "death_queue": "text",
    "deaths": "integer",
    "redelivered": "boolean",
    "size_bytes": "integer",
    "headers_json": "text",
    "tracking_id": "text",
    "published_by": "text",
    "content_type": "text",
    "body_base64": "text",
    "properties_base64": "text",
    "failures": "list of failures",
    "publisher_version": "text",
}


# The name for the packages above.
clean = make_encodable
_NUL = b"\\u0000"
_MOMENTS = tuple(name for name, kind in FIELDS.items() if kind.startswith("moment"))
_TYPES: dict[FieldType, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "moment": (str,),
    "moment or null": (str, NoneType),
    "list of failures": (list,),
}
# Types of all values of a line, by which most lines are checked at once.
_SHAPES = frozenset(product(*(_TYPES[kind] for kind in FIELDS.values())))


def encode(event: MessageEvent) -> bytes:
    """The event as one line of JSON, without the line break at its end."""
    try:
        line = orjson.dumps(event, option=orjson.OPT_UTC_Z)
    except TypeError:
        return _carefully_encoded(event)
    moments = (event.recorded_at, event.published_at, event.due_at)
    are_plain = all(at is None or (at.microsecond and at.tzinfo is UTC) for at in moments)
    return line if are_plain and _NUL not in line else _carefully_encoded(event)


def encode_alike(shared: Mapping[str, Any], own: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Lines of events that have the fields `shared` in common; `own` are all with the same fields,
    none of them a moment. What neither states has its default.
    """
    head = b""
    for fields in own:
        if not head:
            whole = MessageEvent(**shared, **fields)
            common = {name: _written(getattr(whole, name)) for name in FIELDS if name not in fields}
            head = orjson.dumps(common)[:-1] + b","
        try:
            tail = orjson.dumps(fields)
        except TypeError:
            tail = b""
        if not tail or _NUL in tail:
            tail = orjson.dumps({name: _written(value) for name, value in fields.items()})
        yield head + tail[1:]


def _carefully_encoded(event: MessageEvent) -> bytes:
    """With what orjson alone writes otherwise: whole seconds, other zones, NUL, surrogates."""
    return orjson.dumps({name: _written(getattr(event, name)) for name in FIELDS})


def decode(line: bytes) -> MessageEvent:
    """Read a line. Raises EventError for what is no event of any version."""
    values = read_object(line)
    if tuple(map(type, map(values.get, FIELDS))) in _SHAPES and len(values) == len(FIELDS):
        for name in _MOMENTS:
            if values[name] is not None:
                values[name] = _moment(name, values[name])
        values["failures"] = _read_failures(values["failures"])
        return MessageEvent(**values)
    missing = [name for name in NEEDED if name not in values]
    if missing:
        raise EventError(f"The line has no field {', '.join(missing)}.")
    known = {name: _read(name, values[name]) for name in FIELDS if name in values}
    return MessageEvent(**{"caught_up": False, "source": "", **known})


def read_object(line: bytes) -> dict[str, Any]:
    """The line's JSON object. Raises EventError."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EventError(f"The line is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise EventError("The line is JSON, but not an object.")
    return values


_AS_THEY_ARE = frozenset({int, bool, NoneType, datetime})


def bounded(text: str) -> str:
    """A text that a column of names can hold."""
    return clean(text)[:LONGEST_TEXT]


def failures_of(history: History) -> tuple[Failure, ...]:
    """The failures that x-death records, the oldest first."""
    return tuple(
        _failure(
            death.queue,
            death.reason,
            death.count,
            int(death.first_at.timestamp()) if death.first_at else None,
        )
        for death in history.deaths
        if death.queue and death.reason not in ("", "expired")
    )[:MOST_FAILURES]


def _failure(queue: str, reason: str, count: int, began_s: int | None) -> Failure:
    return {
        "queue": bounded(queue),
        "reason": bounded(reason),
        "count": min(count, LARGEST_NUMBER),
        "began_s": began_s,
    }


def bounded_headers(headers: Mapping[str, Any], limit: int = HEADERS_LIMIT_BYTES) -> str:
    """Headers as a JSON object of at most `limit` bytes, for display and search.

    Long texts are cut, bytes and numbers without a JSON form become texts, and the key "(left out)"
    counts the headers without room. Never raises on any header value.
    """
    try:
        whole = orjson.dumps(headers)
    except TypeError:
        whole = b""
    if whole and len(whole) <= limit and _NUL not in whole:
        # Short and flat, so that checking each value would find nothing. A null may be a NaN.
        is_small = (
            len(whole) <= VALUE_LIMIT_CHARACTERS
            and whole.count(b"{") + whole.count(b"[") <= NESTING_LIMIT
            and b"null" not in whole
        )
        if is_small or _is_plain(headers, NESTING_LIMIT + 1):
            return whole.decode()
    room = limit - 64
    shown: dict[str, Any] = {}
    # Reports count deaths by x-death, so it has room before what a client wrote.
    for name, value in sorted(headers.items(), key=lambda header: header[0] != DEATHS_HEADER):
        item = {clean(name): _plain(value, NESTING_LIMIT)}
        size = len(orjson.dumps(item))
        if size <= room:
            shown |= item
            room -= size
    excluded = len(headers) - len(shown)
    if excluded > 0:
        shown["(left out)"] = f"{excluded} of {len(headers)} headers"
    return orjson.dumps(shown).decode()


def _is_plain(value: Any, depth: int) -> bool:
    """Whether orjson alone writes it as `_plain` would."""
    kind = type(value)
    if kind is str:
        return len(value) <= VALUE_LIMIT_CHARACTERS
    if kind in _AS_THEY_ARE:
        return True
    if depth == 0 or kind not in (dict, list):
        return False
    items = (*value, *value.values()) if kind is dict else value
    return all(_is_plain(item, depth - 1) for item in items)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, (bytes, bytearray)):
        return _cut(clean(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_cut(clean(name)): _plain(item, depth - 1) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    return _cut(clean(value))


def _cut(text: str) -> str:
    if len(text) <= VALUE_LIMIT_CHARACTERS:
        return text
    return f"{text[:VALUE_LIMIT_CHARACTERS]}… ({len(text)} characters)"


def _written(value: Any) -> Any:
    if isinstance(value, datetime):
        naive = value.astimezone(UTC).replace(tzinfo=None)
        return naive.isoformat(timespec="microseconds") + "Z"
    return clean(value) if isinstance(value, str) else value


def _read(name: str, value: Any) -> Any:
    kind = FIELDS[name]
    if kind == "moment or null" and value is None:
        return None
    if kind in ("moment", "moment or null"):
        return _moment(name, value)
    if type(value) not in _TYPES[kind]:
        raise EventError(f"The field {name} must be a {kind}, not a {type(value).__name__}.")
    return _read_failures(value) if kind == "list of failures" else value


def _read_failures(values: Sequence[Any]) -> tuple[Failure, ...]:
    return tuple(_read_failure(value) for value in values) if values else ()


def _read_failure(value: Any) -> Failure:
    if isinstance(value, dict):
        queue, reason, count = value.get("queue"), value.get("reason"), value.get("count")
        began_s = value.get("began_s")
        is_counted = type(count) is int and count > 0 and type(began_s) in (int, NoneType)
        if isinstance(queue, str) and isinstance(reason, str) and is_counted:
            return _failure(queue, reason, cast(int, count), began_s)
    raise EventError("An item of the field failures is not a failure.")


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(cast(str, value))
    except (TypeError, ValueError) as error:
        raise EventError(f"The field {name} is not a time: {value!r}.") from error
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise EventError(f"The field {name} has no time zone: {value!r}.")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        # The first and the last day of the calendar have none in UTC.
        raise EventError(f"The field {name} is not a valid time in UTC: {value!r}.") from error
