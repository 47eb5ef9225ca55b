"""PURE: a tapped copy of a message and what its pattern reads from it -> a MessageEvent."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings

from analytics.events import (
    LARGEST_NUMBER,
    Kind,
    MessageEvent,
    bounded,
    bounded_headers,
    clean,
    failures_of,
)
from topology.clients.describe import describe
from topology.deaths import History, read_history
from topology.delays import milliseconds
from topology.message import (
    PUBLISHED_AT_HEADER,
    REPLAY_HEADER,
    TRACKING_HEADER,
    Message,
    content_id,
    kept_by_streams,
)
from topology.structure.copies import Phase, Reading

KINDS: dict[Phase, Kind] = {"entry": "scheduled", "exit": "delivered", "publish": "published"}
ETA_HEADER, TASK_HEADER = "eta", "task"
NSERVICEBUS_TIME = "%Y-%m-%d %H:%M:%S:%f Z"
LONGEST_TRACKING_ID = LONGEST_VERSION = 100
# Times that no publisher's clock shows; near the ends of the calendar, local times do not exist.
EARLIEST, LATEST = datetime(1990, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
# Errors that unforeseen headers may raise where a pattern reads them.
UNFORESEEN = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
# Largest body that is stored: larger ones would make the log many times larger than its content.
STORED_BODY_BYTES = 64 * 1024
# Longest body that is searched for what a client library wrote.
DESCRIBED_BYTES = 16 * 1024


@dataclass(frozen=True)
class Place:
    """Whose tap it is: slugs of broker and topology, the vhost, and the pattern's kind."""

    broker: str
    vhost: str
    topology: str
    pattern: str


def event_of_copy(
    message: Message,
    reading: Reading,
    place: Place,
    *,
    event_id: str,
    recorded_at: datetime,
    caught_up: bool,
    history: History | None = None,
    keep_bytes: int = -1,
) -> MessageEvent:
    """The event for a copy. An entry starts the clock: it is due its delay later.

    An entry that was read late is due its delay after its publisher's timestamp, if it has one
    finer than a second, and a task of Celery at its eta; any other seems due later, by as much as
    it was read late.

    A body of at most `keep_bytes` is kept in the event, with the properties as received. `history`
    are its deaths, where they are read already.
    """
    properties, headers = message.properties, message.properties.headers
    is_kept = len(message.body) <= keep_bytes
    body = message.body if len(message.body) <= DESCRIBED_BYTES else b""
    read = describe(headers, body, message.routing_key)
    history = read_history(headers) if history is None else history
    deaths = history.total
    is_first_publish = caught_up and not deaths and reading.phase != "exit"
    published_at, source = published(message, recorded_at=recorded_at if is_first_publish else None)
    replay_id = bounded(message.tag(REPLAY_HEADER))
    due_at = recorded_at + reading.delay
    if not caught_up and not deaths and not replay_id:
        # Read late, but its header contains the start or the end of the wait.
        if published_at and source != "timestamp":
            due_at = min(due_at, published_at + reading.delay)
        due_at = min(due_at, read_eta(message) or due_at)
    return MessageEvent(
        event_id=event_id,
        kind=KINDS[reading.phase],
        recorded_at=recorded_at,
        caught_up=caught_up,
        source="tap",
        broker=place.broker,
        vhost=place.vhost,
        topology=place.topology,
        pattern=place.pattern,
        exchange=bounded(message.exchange),
        routing_key=bounded(message.routing_key),
        queue=bounded(reading.queue),
        destination=bounded(reading.destination),
        message_id=bounded(properties.message_id or reading.message_id),
        correlation_id=bounded(properties.correlation_id or ""),
        content_id=content_of(message),
        requested_delay_ms=milliseconds(reading.delay),
        published_at=published_at,
        published_at_source=source,
        due_at=due_at if reading.phase == "entry" else None,
        attempt=min(reading.attempt, LARGEST_NUMBER),
        replay_id=replay_id,
        exception_type=bounded((read and read.exception_type) or ""),
        death_reason=bounded(reading.death_reason),
        death_queue=bounded(reading.death_queue),
        deaths=min(deaths, LARGEST_NUMBER),
        redelivered=message.redelivered,
        size_bytes=len(message.body),
        headers_json=bounded_headers(headers),
        tracking_id=clean(message.tag(TRACKING_HEADER))[:LONGEST_TRACKING_ID],
        published_by=bounded(
            properties.app_id or (read and read.publisher) or properties.user_id or ""
        ),
        content_type=bounded(properties.content_type or ""),
        body_base64=b64encode(message.body).decode() if is_kept else "",
        properties_base64=b64encode(properties.raw).decode() if is_kept else "",
        failures=failures_of(history),
        publisher_version=version_of(headers),
    )


def content_of(message: Message) -> str:
    """What names a message without an id: the same in the log as on copies that a stream kept."""
    return content_id(kept_by_streams(message.properties), message.body)


def published(message: Message, *, recorded_at: datetime | None) -> tuple[datetime | None, str]:
    """When the message was published, and the source of that time; (None, "") when unknown.

    The most reliable timestamp wins. `recorded_at` is given for a copy of a first publish, made at
    that moment; the AMQP timestamp comes last, because it is in whole seconds.
    """
    headers = message.headers
    for source, read in STAMPS:
        if source in headers and (at := read(headers[source])) is not None:
            return at, SOURCES.get(source, source)
    if recorded_at is not None:
        return recorded_at, "recorded"
    at = _of_ms(message.properties.timestamp, unit_ms=1000)
    return (at, "timestamp") if at else (None, "")


def read_eta(message: Message) -> datetime | None:
    """When a task of Celery is due; None of anything else.

    Source: celery/app/amqp.py, task protocol 2, header `eta`, ISO 8601.
    """
    eta = message.headers.get(ETA_HEADER)
    if not isinstance(eta, str) or TASK_HEADER not in message.headers:
        return None
    try:
        at = datetime.fromisoformat(eta)
        return _plausible(at.astimezone(UTC)) if at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _of_ms(value: Any, unit_ms: int = 1) -> datetime | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    try:
        return _plausible(datetime.fromtimestamp(value * unit_ms / 1000, UTC))
    except (ValueError, OverflowError, OSError):
        return None


def _of_text(value: Any) -> datetime | None:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    try:
        return _plausible(datetime.strptime(text, NSERVICEBUS_TIME).replace(tzinfo=UTC))
    except (TypeError, ValueError):
        return None


def _plausible(moment: datetime) -> datetime | None:
    return moment if EARLIEST <= moment < LATEST else None


# Stamps of a publish time, the most trustworthy first.
STAMPS: tuple[tuple[str, Callable[[Any], datetime | None]], ...] = (
    (PUBLISHED_AT_HEADER, _of_ms),
    ("NServiceBus.Retries.Timestamp", _of_text),
    ("timestamp_in_ms", _of_ms),
    ("NServiceBus.TimeSent", _of_text),
)
SOURCES = {PUBLISHED_AT_HEADER: "delayboard"}


def version_of(headers: Mapping[str, Any]) -> str:
    """The version of the publisher, as the message itself says; "" when it does not."""
    for name in settings.VERSION_HEADERS:
        value = headers.get(name)
        if isinstance(value, (str, bytes, int, float)):
            return clean(value)[:LONGEST_VERSION]
    return ""
