"""What the demo's shop sends for later: reminders, through delay levels and through hold queues.

Those in the levels of the shop can be cancelled, rescheduled and delivered now.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event
from typing import Any

from django.db import connection

from delayboard.demo.apply_topology import apply_topology
from delayboard.publishing.intercepted import without_intercepted
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.publisher import Publisher, publisher
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Publish
from topology.models import Broker, Topology
from topology.operations.ownership import own_declared
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS

REMINDERS = "reminders"
KEY = "mail"
HOLDS = (timedelta(seconds=10), timedelta(seconds=30), timedelta(minutes=2))
# Most wait for seconds or minutes; a few for hours, so that the high levels are seen at work.
SELDOM = 0.02
SHORT_BITS, LONG_BITS = (1.0, 8.5), (12.0, 17.0)
# Long enough for somebody to choose one and change it.
SHOP_BITS = (5.5, 9.5)
PAUSE_SECONDS = (1.5, 5.0)
# The late night of the generated history uses up two thirds of what it allows.
TARGET_PERCENT = 97.0
TICK_SECONDS = 0.5


@dataclass(frozen=True)
class ReminderFlow:
    """One of the ways to delay a reminder: the pattern with its parameters, and the target."""

    kind: str
    params: Any
    target: str

    @property
    def pattern(self) -> Pattern:
        return PATTERNS[self.kind]


LEVELS = ReminderFlow(delay_levels.KIND, delay_levels_params.Params(), REMINDERS)
# Nobody binds the queue of these levels again for each message, as NServiceBus does.
SHOP = ReminderFlow(delay_levels.KIND, delay_levels_params.Params("own", "shop", 18), REMINDERS)
HOLD = ReminderFlow(hold_queues.KIND, hold_queues_params.Params(REMINDERS, (KEY,), HOLDS), KEY)


def remind(broker: Broker, stop: Event) -> None:
    """Set up what is missing, then send reminders and take those that are due, until `stop`.

    Raises BrokerError, and Refusal when other objects have the names.
    """
    flows = prepare(broker)
    connection.close()
    address = broker.address
    with (
        Consumer(address, REMINDERS, prefetch=50) as consumer,
        # Where both topologies were deleted nothing is sent, and nobody would answer heartbeats.
        publisher(address, "demo reminders", heartbeat=0) as channel,
    ):
        due = time.monotonic()
        while not stop.is_set():
            for delivery in consumer.batch(
                limit=50, limit_bytes=1_000_000, wait=TICK_SECONDS, linger=0
            ):
                consumer.ack_through(delivery)
            if flows and time.monotonic() >= due:
                due = time.monotonic() + random.uniform(*PAUSE_SECONDS)
                flow = random.choice(flows)
                send(channel, flow, random_delay(flow))


def prepare(broker: Broker) -> list[ReminderFlow]:
    """Make and apply all topologies; the flows that exist, without those that were deleted.

    The levels are dozens of exchanges and as many queues: the first time takes seconds.
    """
    with Management(broker.address) as management:
        management.declare_exchange(Exchange(REMINDERS))
        management.declare_queue(Queue(REMINDERS, arguments=Arguments({"x-queue-type": "classic"})))
        management.bind(Binding(REMINDERS, REMINDERS, KEY))
        rows = {
            HOLD: apply_topology(broker, HOLD.kind, HOLD.params),
            LEVELS: apply_topology(
                broker, LEVELS.kind, LEVELS.params, target_percent=TARGET_PERCENT
            ),
            SHOP: apply_topology(broker, SHOP.kind, SHOP.params, keep_bodies=True),
        }
        applied = [(flow, row) for flow, row in rows.items() if row]
        for flow, row in applied:
            if flow.kind == delay_levels.KIND:
                _bind_target(row, flow, management)
    return [flow for flow, _ in applied]


def send(channel: Publisher, flow: ReminderFlow, delay: timedelta) -> None:
    """Publish by the flow's route, on one channel. Raises BrokerError."""
    route = flow.pattern.route(flow.params, delay, flow.target)
    body = json.dumps({"remind": random.choice(["Ada", "Grace", "Edsger"]), "of": "an invoice"})
    name = str(uuid.uuid4())
    properties = build_properties(
        # With the id in a header, others do not pass the worker while one is changed.
        {"message-id": name, **route.make_headers(time.time_ns() // 1_000_000)},
        content_type="application/json",
        delivery_mode=2,
        message_id=name,
        app_id="demo-shop",
    )
    message = Publish(route.exchange, route.routing_key, properties, body.encode())
    # The bindings are there, or are replaced while Delayboard changes a message.
    route = replace(route, declares=Definitions(queues=route.declares.queues))
    channel.publish_by(route, message)


def random_delay(flow: ReminderFlow) -> timedelta:
    """One that is on offer, or any: short ones far more often than long ones."""
    offered = flow.pattern.delays(flow.params)
    if offered:
        return random.choice(offered)
    short = SHOP_BITS if flow == SHOP else SHORT_BITS
    bits = LONG_BITS if random.random() < SELDOM else short
    return timedelta(seconds=round(2 ** random.uniform(*bits)))


def _bind_target(levels: Topology, flow: ReminderFlow, management: Management) -> None:
    """Before the first message: a level keeps what it cannot route. Deleted with the levels."""
    out = delay_levels.route(flow.params, timedelta(0), flow.target).declares
    out = without_intercepted(out, levels.broker)
    own_declared(levels, out, observe(management).definitions)
    for binding in out.bindings:
        management.bind(binding)
