"""Dead letters, snapshots and rows for tests, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.parked import groups, store
from delayboard.dead_letters.queues.peek import PeekedMessage, number_messages
from delayboard.dead_letters.replay import batch_state
from delayboard.models import (
    BatchState,
    MessageGroup,
    ParkedMessage,
    Publication,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
)
from delayboard.models.publication import Sent
from tests.topology.builders import NOON, a_queue
from topology.broker.properties.read import build_properties
from topology.database.paging import Page
from topology.deaths import Death
from topology.definitions import TAP_PREFIX, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.message import Message
from topology.models import Broker
from topology.redaction import NOTHING

SHOP: list[BrokerObject] = [
    Exchange("orders"),
    Exchange("news", "fanout"),
    a_queue("orders", dlx="", key="dead"),
    a_queue("audit"),
    a_queue("dead"),
    a_queue("hold", ttl=5000, dlx="orders", key="orders"),
    Binding("orders", "orders", "orders"),
    Binding("news", "orders", ""),
    Binding("news", "audit", ""),
]


def shop(*more: BrokerObject) -> Definitions:
    """A work queue `orders`, its dead letters in `dead`, a fanout `news`, a delay `hold`."""
    return Definitions.of([*SHOP, *more])


def a_death(queue: str = "orders", reason: str = "rejected", **changes: Any) -> Death:
    """A rejection in `orders`, published there through the exchange of that name."""
    values: dict[str, Any] = {
        "count": 1,
        "first_at": NOON,
        "exchange": "orders",
        "routing_keys": ("orders",),
    }
    return Death(queue, reason, **(values | changes))


def deaths_header(*deaths: Death) -> dict[str, Any]:
    """The x-death header of these deaths, the newest first."""
    entries = [
        {
            "queue": death.queue,
            "reason": death.reason,
            "count": death.count,
            "time": death.first_at,
            "exchange": death.exchange,
            "routing-keys": list(death.routing_keys),
        }
        for death in deaths
    ]
    return {"x-death": entries}


def a_message(
    body: bytes = b"{}", headers: Mapping[str, Any] | None = None, **stated: Any
) -> Message:
    """A message that was rejected in `orders`, or with any other headers."""
    properties = build_properties(
        deaths_header(a_death()) if headers is None else headers, **stated
    )
    return Message("", "dead", properties, body)


def peeked_messages(*messages: Message) -> tuple[PeekedMessage, ...]:
    return number_messages(list(messages))


def some_peeked_messages(bodies: Iterable[bytes]) -> tuple[PeekedMessage, ...]:
    return number_messages([a_message(body) for body in bodies])


def a_publication(
    broker: Broker, *, after: timedelta | None = timedelta(0), **stated: Any
) -> Publication:
    """A confirmed publication that is predicted to arrive `after` its sending."""
    values: dict[str, Any] = {
        "size": 2,
        "sent": Sent.CONFIRMED,
        "predicted_delay_ms": None if after is None else after // timedelta(milliseconds=1),
        "prediction": "The message arrives in orders.",
    }
    return Publication.objects.create(broker=broker, **(values | stated))


TAP = TAP_PREFIX + "orders"

TAPPED = shop(Queue(TAP), Binding("orders", TAP, "orders"), Binding("orders", TAP, "only-tapped"))


def frozen(
    user: User | None,
    broker: Broker,
    found: Sequence[ParkedMessage],
    *targets: ReplayRoute,
    **stated: Any,
) -> ReplayBatch:
    """A draft of these messages; they go to the targets in turn, to `orders` without any."""
    batch = ReplayBatch.objects.create(
        broker=broker,
        description=f"{len(found)} messages",
        parked_messages=[peeked_message.pk for peeked_message in found],
        selected=len(found),
        state=BatchState.DRAFT,
        state_at=timezone.now(),
        created_by=user,
        **stated,
    )
    routes = targets or (a_route("orders", "orders"),)
    for place, route in enumerate(routes):
        route.batch, route.items_number = batch, len(found[place :: len(routes)])
        route.save()
    ReplayItem.objects.bulk_create(
        ReplayItem(
            batch=batch,
            position=place + 1,
            parked_message=peeked_message,
            route=routes[place % len(routes)],
            message_id=peeked_message.message_id,
            size=peeked_message.size,
        )
        for place, peeked_message in enumerate(found)
    )
    return batch


def a_route(exchange: str, key: str, **stated: Any) -> ReplayRoute:
    """A target with a good verdict, or with what is stated."""
    values = {"ending": "delivered", "verdict": "The message arrives in orders at once."}
    return ReplayRoute(exchange=exchange, routing_key=key, **(values | stated))


def started(
    user: User | None, broker: Broker, bodies: Iterable[bytes], *targets: ReplayRoute, **stated: Any
) -> ReplayBatch:
    """A replay of new messages with these bodies that waits for a worker."""
    found = parked(
        broker, *[a_message(body, message_id=body.decode(), delivery_mode=2) for body in bodies]
    )
    batch = frozen(user, broker, found, *targets, **stated)
    batch_state.start(user, batch, despite_verdict=True)
    batch.refresh_from_db()
    return batch


def states(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("state", flat=True))


def parked(
    broker: Broker, *messages: Message, queue: str = "dead", at: datetime = NOON
) -> list[ParkedMessage]:
    """Parked messages, as parking writes them."""
    with transaction.atomic():
        return store.put(broker, queue, messages, at=at)


def page_of(broker: Broker, filters: groups.GroupFilter) -> Page[MessageGroup]:
    """The groups of one broker, nothing of which is hidden."""
    return groups.page([broker], filters, {broker.pk: NOTHING})
