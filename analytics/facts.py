"""Facts: what Delayboard itself does to messages, stated where it happens.

A fact is a row of the very transaction that did the thing, so that neither is without the
other; the recorder alone drains facts to the event log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import NoneType
from typing import NamedTuple
from uuid import uuid4

from analytics.events import Kind, MessageEvent, bounded_headers, clean, decode, encode
from analytics.models import Fact
from topology.deaths import newest_death, read_history
from topology.delays import milliseconds
from topology.message import (
    CHANGED_ON_THE_WAY,
    Message,
    Properties,
    Publish,
    content_id,
    kept_by_streams,
)
from topology.models import Broker, Topology

SOURCE = "delayboard"
_PLAIN = frozenset({str, int, bool, float, NoneType})


class Stated(NamedTuple):
    """A message that something is stated of; all of its body that matters is known already."""

    message: Message | Publish
    content_id: str
    size: int
    deaths: int


def id_of(properties: Properties, known: str, body: Callable[[], bytes]) -> str:
    """The content id as a stream's copy has it, where `known` is the message's own."""
    is_kept = properties.delivery_mode in (1, 2) and properties.cluster_id is None
    # What dying adds is no part of the id, so that the x-death of a dead letter does not matter.
    hashed = (v for name, v in properties.headers.items() if name not in CHANGED_ON_THE_WAY)
    if is_kept and all(type(value) in _PLAIN for value in hashed):
        return known
    return content_id(kept_by_streams(properties), body())


def state(
    *,
    broker: Broker,
    kind: Kind,
    message: Message | Publish,
    at: datetime,
    topology: Topology | None = None,
    exchange: str = "",
    routing_key: str = "",
    queue: str = "",
    destination: str = "",
    requested_delay: timedelta = timedelta(0),
    tracking_id: str = "",
    replay_id: str = "",
) -> None:
    """State that this was done to the message at `at` (UTC), in the caller's transaction.

    `exchange` and `routing_key` default to the message's own; `queue` is where it lay, for
    one that was parked or discarded.
    """
    properties = message.properties
    told = Stated(
        message,
        content_id(kept_by_streams(properties), message.body),
        len(message.body),
        read_history(properties.headers).total,
    )
    event = _event(broker, kind, told, at, queue)
    event.topology = topology.slug if topology else ""
    event.pattern = topology.kind if topology else ""
    event.exchange = exchange or message.exchange
    event.routing_key = routing_key or message.routing_key
    event.destination = destination
    event.requested_delay_ms = milliseconds(requested_delay)
    event.published_at = at if kind in ("published", "replayed") else None
    event.published_at_source = SOURCE if kind in ("published", "replayed") else ""
    event.replay_id = replay_id
    event.tracking_id = tracking_id
    Fact.objects.create(line=encode(event).decode())


def state_all(
    *, broker: Broker, kind: Kind, of: Iterable[tuple[str, Stated]], at: datetime
) -> None:
    """State the same of many messages, each with the queue it lay in, by one insert."""
    Fact.objects.bulk_create(
        Fact(line=encode(_event(broker, kind, one, at, queue)).decode()) for queue, one in of
    )


def _event(broker: Broker, kind: Kind, of: Stated, at: datetime, queue: str) -> MessageEvent:
    message = of.message
    properties = message.properties
    death_queue, death_reason = newest_death(properties.headers) or ("", "")
    return MessageEvent(
        event_id=f"fact:{uuid4().hex}",
        kind=kind,
        recorded_at=at,
        caught_up=True,
        source=SOURCE,
        broker=broker.slug,
        vhost=broker.vhost,
        exchange=message.exchange,
        routing_key=message.routing_key,
        queue=queue,
        message_id=properties.message_id or "",
        correlation_id=properties.correlation_id or "",
        content_id=of.content_id,
        death_queue=clean(death_queue),
        death_reason=clean(death_reason),
        deaths=of.deaths,
        redelivered=isinstance(message, Message) and message.redelivered,
        size_bytes=of.size,
        headers_json=bounded_headers(properties.headers),
    )


def oldest(number: int) -> list[tuple[int, MessageEvent]]:
    """The first facts that are not in the log yet, with their row ids."""
    rows = Fact.objects.order_by("id")[:number]
    return [(row.pk, decode(row.line.encode())) for row in rows]


def forget(ids: Sequence[int]) -> None:
    """Delete facts that are in the log."""
    Fact.objects.filter(pk__in=ids).delete()
