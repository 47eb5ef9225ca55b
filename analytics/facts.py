"""Facts: what Delayboard itself does to messages, stated where it happens.

A fact is a row of the very transaction that did the thing, so that neither is without the
other; the recorder alone drains facts to the event log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from analytics.events import Kind, MessageEvent, bounded_headers, clean, decode, encode
from analytics.models import Fact
from topology.deaths import newest_death, read_history
from topology.delays import milliseconds
from topology.message import Message, Publish, content_id, kept_by_streams
from topology.models import Broker, Topology

SOURCE = "delayboard"


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
    queue_and_reason = newest_death(properties.headers) or ("", "")
    event = MessageEvent(
        event_id=f"fact:{uuid4().hex}",
        kind=kind,
        recorded_at=at,
        caught_up=True,
        source=SOURCE,
        broker=broker.slug,
        vhost=broker.vhost,
        topology=topology.slug if topology else "",
        pattern=topology.kind if topology else "",
        exchange=exchange or message.exchange,
        routing_key=routing_key or message.routing_key,
        queue=queue,
        destination=destination,
        message_id=properties.message_id or "",
        correlation_id=properties.correlation_id or "",
        content_id=content_id(kept_by_streams(properties), message.body),
        requested_delay_ms=milliseconds(requested_delay),
        published_at=at if kind in ("published", "replayed") else None,
        published_at_source=SOURCE if kind in ("published", "replayed") else "",
        replay_id=replay_id,
        death_queue=clean(queue_and_reason[0]),
        death_reason=clean(queue_and_reason[1]),
        deaths=read_history(properties.headers).total,
        redelivered=isinstance(message, Message) and message.redelivered,
        size_bytes=len(message.body),
        headers_json=bounded_headers(properties.headers),
        tracking_id=tracking_id,
    )
    Fact.objects.create(line=encode(event).decode())


def oldest(number: int) -> list[tuple[int, MessageEvent]]:
    """The first facts that are not in the log yet, with their row ids."""
    rows = Fact.objects.order_by("id")[:number]
    return [(row.pk, decode(row.line.encode())) for row in rows]


def forget(ids: Sequence[int]) -> None:
    """Delete facts that are in the log."""
    Fact.objects.filter(pk__in=ids).delete()
