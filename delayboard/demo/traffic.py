"""The demo's publishers and consumers: each flow has a topology, sends messages and takes them."""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from threading import Event

from django.db import connection

from analytics.models import Slo
from delayboard.demo.script import LEVELS, MAIL, REMINDERS, SHOP, TARGET_PERCENT, Flow
from delayboard.models import Interception
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Publisher, publisher
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties, edit_properties
from topology.deaths import read_history
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import ATTEMPT_HEADER, Message, Properties, Publish, Route
from topology.models import Broker, State, Topology
from topology.operations import provision
from topology.operations.ownership import own_declared
from topology.operations.probes import probe_problem, start_probes
from topology.operations.topology_rows import create_topology
from topology.transfer.prepare import prepare as prepare_message

# Shares of failing and of hopeless messages, so that only webhooks get ten more dead letters in an
# hour, which Now reports.
FLAKY_SHARE, HOPELESS_SHARE = 0.3, 0.005
PAUSE_SECONDS = (3.0, 9.0)
TICK_SECONDS = 0.5
# Share of messages that wait for hours, so that the high levels are used, and the bits of their
# delays.
SELDOM, LONG_BITS = 0.02, (12.0, 17.0)
CLASSIC = Arguments({"x-queue-type": "classic"})


def run_flow(broker: Broker, flow: Flow, stop: Event) -> None:
    """Set up what is missing, then send messages and take them, flakily, until `stop`.

    A topology that this broker cannot hold, or that was deleted, is left alone. Raises
    BrokerError, and Refusal when other objects have the names.
    """
    if prepare(broker, flow) is None:
        stop.wait()
        return
    connection.close()
    with (
        Consumer(broker.address, flow.queue, prefetch=10) as consumer,
        publisher(broker.address, f"demo {flow.queue}") as channel,
    ):
        due = time.monotonic()
        while not stop.is_set():
            channel.keep_alive()
            if time.monotonic() >= due:
                due = time.monotonic() + random.uniform(*PAUSE_SECONDS)
                delay = timedelta(0) if flow.gives_back else choose_delay(flow)
                send(channel, flow, *make_message(flow), delay)
            for delivery in consumer.batch(
                limit=1, limit_bytes=1_000_000, wait=TICK_SECONDS, linger=0
            ):
                handle_message(flow, delivery, consumer, channel)


def prepare(broker: Broker, flow: Flow) -> Topology | None:
    """The flow's applied topology with its queues; None where it cannot be, or was deleted."""
    with Management(broker.address) as management:
        snapshot = observe(management)
        if flow.pattern.obstacle(snapshot.version_tuple):
            return None
        own = {queue.name for queue in flow.pattern.definitions(flow.params).queues}
        for name in {flow.queue, flow.dead} - own - {""}:
            management.declare_queue(Queue(name, arguments=CLASSIC))
        if flow.target == MAIL:
            management.declare_exchange(Exchange(REMINDERS))
            management.bind(Binding(REMINDERS, REMINDERS, MAIL))
        topology = _apply(broker, flow)
        if topology is not None and flow.kind == LEVELS.kind:
            # Before the first message: a level keeps what it cannot route.
            out = flow.pattern.route(flow.params, timedelta(0), flow.target).declares
            out = Interception.without_replaced(out, broker)
            own_declared(topology, out, observe(management).definitions)
            for binding in out.bindings:
                management.bind(binding)
    return topology


def _apply(broker: Broker, flow: Flow) -> Topology | None:
    rows = Topology.objects.filter(broker=broker, kind=flow.kind)
    topology = rows.filter(params=flow.pattern.store(flow.params)).order_by("-pk").first()
    if topology is None:
        topology = create_topology(None, broker, flow.kind, flow.params)
        Topology.objects.filter(pk=topology.pk).update(keep_bodies=flow == SHOP)
        if flow == LEVELS:
            Slo.objects.create(topology=topology, percent=TARGET_PERCENT)
    if topology.state in (State.PLANNED, State.APPLYING):
        provision.apply(None, topology)
        topology.refresh_from_db()
        with Management(broker.address) as management:
            snapshot = observe(management)
        # Not every pattern can have them; the page says why.
        if not probe_problem(topology, snapshot):
            start_probes(None, topology, minutes=1)
    return topology if topology.state == State.APPLIED else None


def choose_delay(flow: Flow) -> timedelta:
    """One that is on offer, or any: short ones far more often than long ones."""
    if offered := flow.pattern.delays(flow.params):
        return random.choice(offered)
    bits = LONG_BITS if random.random() < SELDOM else flow.bits
    return timedelta(seconds=round(2 ** random.uniform(*bits)))


def make_message(flow: Flow) -> tuple[Properties, bytes]:
    """A few of them fail for ever."""
    name, is_hopeless = str(uuid.uuid4()), random.random() < HOPELESS_SHARE
    body = {"for": random.choice(["Ada", "Grace", "Edsger"]), "hopeless": is_hopeless}
    properties = build_properties(
        # With the id in a header, others do not pass the worker while one is changed.
        {"message-id": name},
        content_type="application/json",
        delivery_mode=2,
        message_id=name,
        type=flow.queue,
        app_id="demo-shop",
    )
    return properties, json.dumps(body).encode()


def send(
    channel: Publisher, flow: Flow, properties: Properties, body: bytes, delay: timedelta
) -> None:
    """Publish by the pattern's own route. Raises BrokerError."""
    route = flow.pattern.route(flow.params, delay, flow.target)
    stamped = edit_properties(properties, set_headers=route.make_headers(time.time_ns() // 10**6))
    # The bindings are there, or are replaced while Delayboard changes a message.
    route = replace(route, declares=Definitions(queues=route.declares.queues))
    channel.publish_by(route, Publish(route.exchange, route.routing_key, stamped, body)).require()


def handle_message(flow: Flow, delivery: Delivery, consumer: Consumer, channel: Publisher) -> None:
    """What is published again or parked is confirmed before it is acked."""
    message = delivery.message
    if flow.gives_back and fails(message.body):
        failures = count_failures(flow, message)
        if failures >= flow.limit:
            if flow.dead:
                channel.publish(Publish("", flow.dead, message.properties, message.body)).require()
        elif flow.gives_back == "publishes":
            # Its own count: a republished x-death counts nothing from RabbitMQ 4.0 on.
            stamp = {ATTEMPT_HEADER: failures + 1}
            again = prepare_message(Route("", ""), message.properties, message.body, stamp)
            delays = flow.params.delays
            send(
                channel,
                flow,
                again.properties,
                message.body,
                delays[min(failures, len(delays) - 1)],
            )
        else:
            consumer.reject(delivery, requeue=flow.gives_back == "returns")
            return
    consumer.ack(through=delivery.tag)


def count_failures(flow: Flow, message: Message) -> int:
    """How often it failed before: by x-death where the broker brings it back, or by its own."""
    if flow.gives_back != "publishes":
        return read_history(message.headers).count(flow.queue, "rejected")
    stated = message.headers.get(ATTEMPT_HEADER)
    return stated if isinstance(stated, int) else 0


def fails(body: bytes) -> bool:
    return b'"hopeless": true' in body or random.random() < FLAKY_SHARE
