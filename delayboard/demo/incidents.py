"""Incidents of the demo: old dead letters, a replay that pauses, a missing binding, a mistake."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone

from delayboard.dead_letters.parked import edit_groups, store
from delayboard.dead_letters.parked.park_request import set_automatic_parking
from delayboard.dead_letters.queues.confirmed import decide
from delayboard.dead_letters.replay import batch_state
from delayboard.dead_letters.replay.make_draft import draft_group
from delayboard.dead_letters.replay.options import Options
from delayboard.demo.script import (
    DEAD,
    FLOWS,
    NEWSLETTER,
    ORDERS,
    PRICE_MISSING,
    REFUNDS,
    RETURNS,
    SHOP,
    WEBHOOKS,
)
from delayboard.demo.traffic import CLASSIC, make_message, send
from delayboard.models import CounterSample, MessageGroup, ParkedMessage
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import publisher
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Message, Publish
from topology.models import Broker, State, Topology
from topology.operations.ownership import own_declared

REFUNDS_DEAD = f"{REFUNDS}{DEAD}"
STUCK = replace(SHOP, target=RETURNS)
STUCK_DELAY = timedelta(seconds=10)
PARKED, REFUNDED = 36, 12
TICK_SECONDS = 0.5
NOTE = (
    "The price list has no price for these articles, so the shop cannot charge the orders.\n"
    "Replay this group when the prices are entered."
)
QUEUES = (
    Queue(REFUNDS_DEAD, arguments=CLASSIC),
    Queue(
        REFUNDS,
        arguments=Arguments(
            {**CLASSIC, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": REFUNDS_DEAD}
        ),
    ),
    Queue(RETURNS, arguments=CLASSIC),
    # The mistake: there is no such exchange, so rejected messages would be lost.
    Queue(
        NEWSLETTER, arguments=Arguments({**CLASSIC, "x-dead-letter-exchange": "newsletter-dead"})
    ),
)


def show_incidents(broker: Broker, stop: Event) -> None:
    """Make the incidents once, then reject every refund and take every return until `stop`.

    Raises BrokerError, and Refusal when other objects have the names.
    """
    while not _is_prepared(broker):
        if stop.wait(TICK_SECONDS):
            return
    if not MessageGroup.objects.filter(broker=broker, exception=PRICE_MISSING).exists():
        make_incidents(broker)
    connection.close()
    with (
        Consumer(broker.address, REFUNDS, prefetch=10) as refunds,
        Consumer(broker.address, RETURNS, prefetch=10) as returns,
    ):
        is_replayed = False
        while not stop.is_set():
            for delivery in _take(refunds, wait=TICK_SECONDS):
                refunds.reject(delivery)
            # The stuck one arrives when somebody restores the binding.
            for delivery in _take(returns, wait=0):
                returns.ack(through=delivery.tag)
            is_replayed = is_replayed or replay_refunds(broker)


def _take(consumer: Consumer, *, wait: float) -> list[Delivery]:
    return consumer.batch(limit=1, limit_bytes=1_000_000, wait=wait, linger=0)


def _is_prepared(broker: Broker) -> bool:
    """Whether the topologies that the incidents need are applied."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
    wanted = [(flow.kind, flow.pattern.store(flow.params)) for flow in (SHOP, ORDERS, WEBHOOKS)]
    return all(applied.filter(kind=kind, params=params).exists() for kind, params in wanted)


def make_incidents(broker: Broker) -> None:
    """Declare the queues, park old messages, publish refunds, and unbind a destination."""
    with Management(broker.address) as management, publisher(broker.address, "demo") as channel:
        for queue in QUEUES:
            management.declare_queue(queue)
        snapshot = observe(management)
        for name in (REFUNDS_DEAD, *(flow.dead for flow in FLOWS)):
            if snapshot.definitions.queue(name):
                decide(None, broker, name, snapshot, is_confirmed=True)
                set_automatic_parking(None, broker, name, snapshot, on=True)
        for number in range(REFUNDED):
            body = json.dumps({"refund": number, "amount": 9.5}).encode()
            properties = build_properties(content_type="application/json", delivery_mode=2)
            channel.publish(Publish("", REFUNDS, properties, body)).require()
        levels = Topology.objects.get(
            broker=broker, params=SHOP.pattern.store(SHOP.params), state=State.APPLIED
        )
        out = SHOP.pattern.route(SHOP.params, STUCK_DELAY, RETURNS).declares
        own_declared(levels, out, snapshot.definitions)
        for binding in out.bindings:
            management.bind(binding)
        send(channel, STUCK, *make_message(STUCK), STUCK_DELAY)
        # The message waits now: it gets stuck when it is due.
        for binding in out.bindings:
            management.unbind(binding)
    park_old_messages(broker)


def park_old_messages(broker: Broker) -> None:
    """A group of dead letters of last week, with a note and an owner."""
    first_at = timezone.now() - timedelta(days=9)
    for number in range(PARKED):
        message = _make_dead_letter(died_at := first_at + timedelta(hours=2 * number))
        with transaction.atomic():
            store.put(broker, ORDERS.dead, [message], at=died_at + timedelta(minutes=2))
    owner = get_user_model().objects.filter(is_superuser=True, is_active=True).first()
    username = owner.get_username() if owner else ""
    group = MessageGroup.objects.get(broker=broker, exception=PRICE_MISSING)
    edit_groups.write_note(None, group, note=NOTE, owner=username, link="")


def _make_dead_letter(died_at: datetime) -> Message:
    article = random.randint(1000, 9999)
    death: dict[str, Any] = {
        "queue": ORDERS.queue,
        "reason": "rejected",
        "count": 3,
        "time": died_at.replace(microsecond=0),
        "exchange": ORDERS.queue,
        "routing-keys": [ORDERS.queue],
    }
    headers = {
        "x-death": [death],
        "x-exception-type": PRICE_MISSING,
        # The group's text has the number as a placeholder.
        "x-exception-message": f"The price list has no price for article {article}",
    }
    properties = build_properties(
        headers, content_type="application/json", delivery_mode=2, app_id="demo-shop"
    )
    body = json.dumps({"for": "Ada", "article": article, "hopeless": False}).encode()
    return Message(ORDERS.queue, ORDERS.queue, properties, body, redelivered=False)


def replay_refunds(broker: Broker) -> bool:
    """Replay the refunds once they are parked; True when that is done.

    They are rejected again, so the replay pauses itself after its canary.
    """
    parked = ParkedMessage.objects.filter(broker=broker, queue=REFUNDS_DEAD)
    if parked.count() < REFUNDED:
        return False
    group = parked[0].group
    if not group.replayed and not group.replaying and parked.count() == REFUNDED:
        batch = draft_group(None, group, Options(canary=2, canary_seconds=60), None)
        batch_state.start(None, batch, despite_verdict=True)
        # The demo is complete: earlier counters are those of an empty broker.
        CounterSample.objects.filter(broker=broker).delete()
    return True
