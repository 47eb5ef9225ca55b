"""Facts: what Delayboard itself does to messages, stated where it happens.

A fact is a row of the very transaction that did the thing, so that neither is without the
other; the recorder alone drains facts to the event log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from threading import Event
from types import NoneType
from typing import Any, NamedTuple
from uuid import uuid4

from django.conf import settings

from analytics.events import (
    LARGEST_NUMBER,
    Kind,
    MessageEvent,
    bounded,
    bounded_headers,
    clean,
    decode,
    encode,
    encode_alike,
    failures_of,
)
from analytics.log import EventLog
from analytics.models import Fact
from topology.clients.describe import REPUBLISHED, Description, describe
from topology.deaths import newest_death, read_history
from topology.delays import milliseconds
from topology.message import (
    CHANGED_BY_ROUTING,
    Headers,
    Message,
    Properties,
    Publish,
    content_id,
    kept_by_streams,
)
from topology.models import Broker, Topology

SOURCE = "delayboard"
# Kinds whose time is also that of the publish.
SENT = frozenset({"published", "replayed"})
# Facts of one row: a row for each takes far longer.
LINES = 25
_PLAIN = frozenset({str, int, bool, float, NoneType})

# Rows that are moved at a time; each can hold several facts.
BATCH = 200
IDLE_SECONDS = 1.0


class Stated(NamedTuple):
    """A message that something is stated of; all of its body that matters is known already.

    `exchange` and `routing_key`, where it was sent to, default to the message's own. `failed` are
    the headers with which it was parked, if a replay reset some.
    """

    message: Message | Publish
    content_id: str
    size: int
    replay_id: str = ""
    exchange: str = ""
    routing_key: str = ""
    failed: Headers | None = None


def id_of(properties: Properties, known: str, body: Callable[[], bytes]) -> str:
    """The content id in the event log, where `known` is the message's own."""
    is_kept = properties.delivery_mode in (1, 2) and properties.cluster_id is None
    # What dying adds is no part of the id, so that the x-death of a dead letter does not matter.
    if is_kept and all(
        type(value) in _PLAIN or name in CHANGED_BY_ROUTING
        for name, value in properties.headers.items()
    ):
        return known
    return content_id(kept_by_streams(properties), body())


def state(
    *,
    broker: Broker,
    kind: Kind,
    message: Message | Publish,
    at: datetime,
    topology: Topology | None = None,
    destination: str = "",
    requested_delay: timedelta = timedelta(0),
    tracking_id: str = "",
    event_id: str = "",
) -> None:
    """Record an action on the message at `at` (UTC), in the caller's transaction.

    What may be stated again after a kill has the same `event_id` then; it is random by default.
    """
    content = content_id(kept_by_streams(message.properties), message.body)
    name = f"fact:{event_id or uuid4().hex}"
    own = _own(name, "", Stated(message, content, len(message.body)))
    event = MessageEvent(**_shared(broker, kind, at), **own)
    event.topology = topology.slug if topology else ""
    event.pattern = topology.kind if topology else ""
    event.destination = destination
    event.requested_delay_ms = milliseconds(requested_delay)
    event.tracking_id = tracking_id
    Fact.objects.create(line=encode(event).decode())


def state_all(
    *, broker: Broker, kind: Kind, of: Iterable[tuple[str, Stated]], at: datetime
) -> None:
    """Record the same action on many messages, each with its queue, by one insert.

    A replay records "replayed" with each one's replay id, exchange and routing key.
    """
    batch = f"fact:{uuid4().hex}"
    own = (_own(f"{batch}.{place}", *one) for place, one in enumerate(of, start=1))
    lines = encode_alike(_shared(broker, kind, at), own)
    Fact.objects.bulk_create(Fact(line=some.decode()) for some in _rows(lines))


def _rows(lines: Iterator[bytes]) -> Iterator[bytes]:
    while some := list(islice(lines, LINES)):
        yield b"\n".join(some)


def _shared(broker: Broker, kind: Kind, at: datetime) -> dict[str, Any]:
    is_sent = kind in SENT
    return {
        "kind": kind,
        "recorded_at": at,
        "caught_up": True,
        "source": SOURCE,
        "broker": broker.slug,
        "vhost": broker.vhost,
        "published_at": at if is_sent else None,
        "published_at_source": SOURCE if is_sent else "",
    }


def _own(event_id: str, queue: str, of: Stated) -> dict[str, Any]:
    message = of.message
    properties = message.properties
    history = read_history(properties.headers)
    failed = properties.headers if of.failed is None else of.failed
    # Without the body, which replays and discards do not read.
    read = describe(failed) or Description("")
    republished = (read.queue or "", REPUBLISHED) if read.is_of_failure else ("", "")
    death_queue, death_reason = newest_death(properties.headers) or republished
    return {
        "event_id": event_id,
        "exchange": of.exchange or message.exchange,
        "routing_key": of.routing_key or message.routing_key,
        "queue": queue,
        "message_id": properties.message_id or "",
        "correlation_id": properties.correlation_id or "",
        "content_id": of.content_id,
        "replay_id": of.replay_id,
        "death_queue": clean(death_queue),
        "death_reason": clean(death_reason),
        "exception_type": bounded(read.exception_type or ""),
        "deaths": min(history.total, LARGEST_NUMBER),
        "redelivered": isinstance(message, Message) and message.redelivered,
        "size_bytes": of.size,
        "headers_json": bounded_headers(properties.headers),
        "failures": failures_of(history),
    }


def oldest(rows: int) -> list[tuple[int, MessageEvent]]:
    """The facts of the first rows that are not in the log yet, each with its row's id."""
    return [
        (row.pk, decode(line.encode()))
        for row in Fact.objects.order_by("id")[:rows]
        for line in row.line.split("\n")
    ]


def forget(ids: Iterable[int]) -> None:
    """Delete the rows of facts that are in the log."""
    Fact.objects.filter(pk__in=set(ids)).delete()


def write_facts(*, stop: Event, beat: Callable[[Mapping[str, object]], None]) -> None:
    """Move facts into the log until `stop` is set; facts that exist then have been moved.

    `beat` receives `drained` after every round. Raises LogError; another call continues.
    """
    log = EventLog(settings.EVENT_LOG, f"facts.{uuid4().hex[:8]}")
    total = 0
    try:
        while True:
            is_last = stop.is_set()
            moved = write_batch(log)
            total += moved
            beat({"drained": total})
            if is_last:
                return
            if moved < BATCH:
                stop.wait(IDLE_SECONDS)
    finally:
        log.close()


def write_batch(log: EventLog) -> int:
    """Move the oldest facts; how many. A crash in between writes a line again, with its id."""
    rows = oldest(BATCH)
    if rows:
        log.append(event for _, event in rows)
        forget(row_id for row_id, _ in rows)
    return len(rows)
