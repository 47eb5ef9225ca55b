"""PURE: a tapped copy of a message and what its pattern reads from it -> a MessageEvent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analytics.events import Kind, MessageEvent, bounded_headers, clean
from topology.deaths import read_history
from topology.delays import milliseconds
from topology.message import (
    PUBLISHED_AT_HEADER,
    REPLAY_HEADER,
    TRACKING_HEADER,
    Message,
    content_id,
    kept_by_streams,
)
from topology.patterns.pattern import Phase, Reading

KINDS: dict[Phase, Kind] = {"entry": "scheduled", "exit": "delivered", "publish": "published"}
EXCEPTION_HEADERS = ("NServiceBus.ExceptionInfo.ExceptionType", "MT-Fault-ExceptionType")
NSERVICEBUS_TIME = "%Y-%m-%d %H:%M:%S:%f Z"
LONGEST_TEXT = 255
LONGEST_TRACKING_ID = 100


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
) -> MessageEvent:
    """The event that a copy tells of. An entry starts the clock: it is due its delay later."""
    properties = message.properties
    deaths = read_history(message.headers).total
    published_at, source = published(
        message, recorded_at=recorded_at if caught_up and not deaths else None
    )
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
        exchange=clean(message.exchange),
        routing_key=clean(message.routing_key),
        queue=clean(reading.queue),
        destination=clean(reading.destination),
        message_id=clean(properties.message_id or ""),
        correlation_id=clean(properties.correlation_id or ""),
        content_id=content_of(message),
        requested_delay_ms=milliseconds(reading.delay),
        published_at=published_at,
        published_at_source=source,
        due_at=recorded_at + reading.delay if reading.phase == "entry" else None,
        attempt=reading.attempt,
        replay_id=_bounded(message.tag(REPLAY_HEADER)),
        exception_type=_first_text(message.headers, EXCEPTION_HEADERS),
        death_reason=clean(reading.death_reason),
        death_queue=clean(reading.death_queue),
        deaths=deaths,
        redelivered=message.redelivered,
        size_bytes=len(message.body),
        headers_json=bounded_headers(message.headers),
        tracking_id=clean(message.tag(TRACKING_HEADER))[:LONGEST_TRACKING_ID],
    )


def content_of(message: Message) -> str:
    """What names a message without an id, the same on the copies of both types of tap.

    A stream is known by the content of its last recorded copy too: with another rule each
    would look declared anew, and be recorded a second time.
    """
    return content_id(kept_by_streams(message.properties), message.body)


def published(message: Message, *, recorded_at: datetime | None) -> tuple[datetime | None, str]:
    """When the message was published and who says so; (None, "") when nobody does.

    The most trustworthy stamp wins. `recorded_at` is given for a copy of a first publish,
    taken as it passed; the AMQP timestamp comes last, since it is in whole seconds.
    """
    headers = message.headers
    stamps = (
        ("delayboard", _of_ms(headers.get(PUBLISHED_AT_HEADER))),
        ("NServiceBus.Retries.Timestamp", _of_text(headers.get("NServiceBus.Retries.Timestamp"))),
        ("timestamp_in_ms", _of_ms(headers.get("timestamp_in_ms"))),
        ("NServiceBus.TimeSent", _of_text(headers.get("NServiceBus.TimeSent"))),
        ("recorded", recorded_at),
        ("timestamp", _of_ms(message.properties.timestamp, unit_ms=1000)),
    )
    return next(((at, source) for source, at in stamps if at is not None), (None, ""))


def _of_ms(value: Any, unit_ms: int = 1) -> datetime | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    try:
        return datetime.fromtimestamp(value * unit_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _of_text(value: Any) -> datetime | None:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    try:
        return datetime.strptime(text, NSERVICEBUS_TIME).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        return None


def _first_text(headers: Mapping[str, Any], names: tuple[str, ...]) -> str:
    values = (headers.get(name) for name in names)
    return next((_bounded(value) for value in values if isinstance(value, str)), "")


def _bounded(text: str) -> str:
    return clean(text)[:LONGEST_TEXT]
