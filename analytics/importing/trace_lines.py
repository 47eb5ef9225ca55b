"""PURE: a line of a file of RabbitMQ's tracing plugin (JSON) -> an event.

The plugin writes what the firehose copies (rabbit_tracing_consumer.erl; tried on 3.10.8, 4.0.5
and 4.3.6): properties by name, header values as JSON has them, the payload in base64 and cut at
the trace's max_payload_bytes without a mark, the time in milliseconds with its zone. So a size is
at least so much, and the content's hash is not that of a tap.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from analytics.events import LARGEST_NUMBER, TRACE_ID, EventError, MessageEvent, read_object
from analytics.recorder.firehose.traces import (
    DELIVER,
    PUBLISH,
    Trace,
    Watched,
    event_of_trace,
    is_own,
    read_trace,
)
from topology.deaths import read_history
from topology.message import Message, Properties


@dataclass(frozen=True)
class TraceScope:
    """The source of a trace: the broker's slug, its vhost, and the topologies that read it.

    `ttls_ms` are the TTLs of queues by name, as far as known.
    """

    broker: str
    vhost: str
    watched: Sequence[Watched]
    ttls_ms: Mapping[str, int] = field(default_factory=dict)


def event_of_line(line: bytes, scope: TraceScope) -> MessageEvent | None:
    """None for the reading of our own taps. Raises EventError.

    Never `caught_up`: the file does not record whether the plugin kept up, and reports show when
    they measure by its clock. The id is a hash of the line, so that equal lines share it.
    """
    values = read_object(line)
    copy = _copy(values)
    trace = read_trace(copy)
    if trace is None:
        raise EventError("The line has no routing keys or properties.")
    if values.get("vhost") != scope.vhost:
        raise EventError(f"The message belongs to the virtual host {values.get('vhost')!r}.")
    return None if is_own(copy) else _event(line, values, trace, scope)


def _event(line: bytes, values: Mapping[str, Any], trace: Trace, scope: TraceScope) -> MessageEvent:
    event = event_of_trace(
        trace,
        scope.watched,
        broker=scope.broker,
        vhost=scope.vhost,
        event_id=f"{TRACE_ID}{hashlib.sha256(line).hexdigest()[:32]}",
        recorded_at=_moment(values.get("timestamp")),
        caught_up=False,
        keeps_deaths=False,
    )
    event = replace(event, source="import")
    if event.kind == "delivered" and not event.topology and event.death_reason == "expired":
        return _out_of_unknown_queue(event, trace, scope)
    return event


def _out_of_unknown_queue(event: MessageEvent, trace: Trace, scope: TraceScope) -> MessageEvent:
    """The delivery of a message that expired in a queue of no topology, with trip and delay.

    The delay is the shorter of the queue's TTL and the expiration that the message had, as in the
    broker. x-death keeps that expiration of the first trip only, and the broker removes it then.
    """
    expired = [
        death
        for death in read_history(trace.message.headers).deaths
        if (death.queue, death.reason) == (event.death_queue, "expired")
    ]
    trips = sum(death.count for death in expired)
    stated = [death.original_expiration for death in expired if trips == 1]
    known = [int(text) for text in stated if text and text.isdecimal() and len(text) <= 10]
    if event.death_queue in scope.ttls_ms:
        known.append(scope.ttls_ms[event.death_queue])
    delay_ms = min(known, default=0)
    return replace(event, attempt=min(trips, LARGEST_NUMBER), requested_delay_ms=delay_ms)


def _copy(values: Mapping[str, Any]) -> Message:
    """The firehose's copy that the plugin wrote down."""
    match values.get("type"), values.get("exchange"), values.get("queue"):
        case "published", str(exchange), _:
            key = PUBLISH + exchange
        case "received", _, str(queue):
            key = DELIVER + queue
        case kind, _, _:
            raise EventError(f"The type of the line is neither published nor received: {kind!r}.")
    headers = {**values, "exchange_name": values.get("exchange")}
    try:
        body = b64decode(values["payload"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise EventError("The payload is missing or not base64.") from error
    return Message("amq.rabbitmq.trace", key, Properties(headers=headers), body)


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise EventError(
            f"The time {value!r} does not have the format of RabbitMQ 3.10 and later."
        ) from error
    if moment.tzinfo is None:
        raise EventError(f"The time {value!r} has no time zone.")
    return moment.astimezone(UTC)
