"""Topologies of nine libraries, as their documentation and code declare them: notes at most."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.topology.builders import a_snapshot
from topology.definitions import DELAYED_TYPE, Arguments, Binding, Definitions, Exchange, Queue
from topology.definitions import BrokerObject as One
from topology.findings.find import find
from topology.findings.hit import Severity
from topology.patterns.delay_levels import params as level_params
from topology.patterns.delay_levels.pattern import delay_levels

DAY_MS = 86_400_000


def queue(name: str, *, is_temporary: bool = False, **arguments: str | int) -> Queue:
    """With arguments by their names without "x-"; dead_letter_exchange for one with hyphens."""
    stated = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return Queue(name, not is_temporary, is_temporary, arguments=Arguments(stated))


def bind_exchange(source: str, destination: str, key: str = "") -> Binding:
    return Binding(source, destination, key, destination_is_queue=False)


def endpoint(name: str, kind: str) -> list[One]:
    """A queue behind a fanout exchange of its name."""
    return [queue(name, queue_type=kind), Exchange(name, "fanout"), Binding(name, name, "")]


def levels(preset: str) -> list[One]:
    return list(delay_levels.definitions(level_params.Params(preset)))


# Routing/ConventionalRoutingTopology.cs: each queue, also for errors and audit, behind an exchange,
# each event's exchange bound to those of its bases; receiving endpoints bound to the delays.
NSERVICEBUS: list[One] = [
    *levels("nsb-v2"),
    *(obj for name in ("sales", "error", "audit") for obj in endpoint(name, "quorum")),
    bind_exchange("nsb.v2.delay-delivery", "sales", "#.sales"),
    *(
        Exchange(name, "fanout")
        for name in ("Sales:OrderPlaced", "System:Object", "NServiceBus:IEvent")
    ),
    bind_exchange("Sales:OrderPlaced", "System:Object"),
    bind_exchange("Sales:OrderPlaced", "NServiceBus:IEvent"),
    bind_exchange("Sales:OrderPlaced", "sales"),
]
# RabbitMqReceiveEndpointBuilder.cs, RabbitMqSendSettings.cs: a fanout for each message and queue,
# the delayed-exchange scheduler; the bus endpoint is temporary, and its queue expires.
MASSTRANSIT: list[One] = [
    Exchange("Contracts:SubmitOrder", "fanout"),
    bind_exchange("Contracts:SubmitOrder", "order"),
    Exchange("order_delay", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "fanout"})),
    bind_exchange("order_delay", "order"),
    *(
        obj
        for name in ("order", "order_error", "order_skipped")
        for obj in endpoint(name, "classic")
    ),
    queue("host_bus_1", is_temporary=True, expires=60_000),
    Exchange("host_bus_1", "fanout", durable=False, auto_delete=True),
    Binding("host_bus_1", "host_bus_1", ""),
]
# celery/worker/consumer/delayed_delivery.py, events/receiver.py; kombu's native_delayed_delivery.py
# (direct exchanges get no delays, so the documentation asks for a topic) and pidbox.py.
CELERY: list[One] = [
    *levels("celery"),
    queue("celery", queue_type="quorum"),
    Exchange("celery", "topic"),
    Binding("celery", "celery", "celery"),
    bind_exchange("celery_delayed_delivery", "celery", "#.celery"),
    Binding("celery", "celery", "#.celery"),
    Exchange("celeryev", "topic"),
    queue("celeryev.1", is_temporary=True, message_ttl=5_000, expires=60_000),
    Binding("celeryev", "celeryev.1", "#"),
    Exchange("celery.pidbox", "fanout", durable=False),
    queue("celery@host.celery.pidbox", is_temporary=True, message_ttl=300_000, expires=10_000),
    Binding("celery.pidbox", "celery@host.celery.pidbox", ""),
    Exchange("reply.celery.pidbox", durable=False),
    queue("1.reply.celery.pidbox", is_temporary=True, message_ttl=300_000, expires=10_000),
    Binding("reply.celery.pidbox", "1.reply.celery.pidbox", "1"),
]
# Spring Cloud Stream: auto-bind-dlq, dlq-ttl, dlq-dead-letter-exchange.
SPRING: list[One] = [
    Exchange("orders", "topic"),
    Exchange("DLX"),
    queue("orders.billing", dead_letter_exchange="DLX", dead_letter_routing_key="orders.billing"),
    Binding("orders", "orders.billing", "#"),
    # By the key with which it died into this queue, the name of its own.
    queue("orders.billing.dlq", message_ttl=5_000, dead_letter_exchange=""),
    Binding("DLX", "orders.billing.dlq", "orders.billing"),
    queue("orders.billing.parking-lot"),
]
# EasyNetQ: a delay by DeadLetterExchangeAndMessageTtlScheduler, the common error queue.
EASYNETQ: list[One] = [
    Exchange("Order, Shop", "topic"),
    queue("Order, Shop_billing"),
    Binding("Order, Shop", "Order, Shop_billing", "#"),
    *(
        obj
        for delay, ttl_ms in (("00_00_00_05", 5_000), ("00_00_01_00", 60_000))
        for obj in (
            Exchange(f"Order, Shop_{delay}", "topic"),
            queue(f"Order, Shop_{delay}", message_ttl=ttl_ms, dead_letter_exchange="Order, Shop"),
            Binding(f"Order, Shop_{delay}", f"Order, Shop_{delay}", "eu"),
        )
    ),
    queue("EasyNetQ_Default_Error_Queue"),
]
# sneakers/handlers/maxretry.rb
SNEAKERS: list[One] = [
    Exchange("sneakers"),
    queue("downloads", dead_letter_exchange="downloads-retry"),
    Binding("sneakers", "downloads", "downloads"),
    *(Exchange(f"downloads-{name}", "topic") for name in ("retry", "error", "retry-requeue")),
    queue("downloads-retry", message_ttl=60_000, dead_letter_exchange="downloads-retry-requeue"),
    queue("downloads-error"),
    Binding("downloads-retry", "downloads-retry", "#"),
    Binding("downloads-error", "downloads-error", "#"),
    Binding("downloads-retry-requeue", "downloads", "#"),
]
# nameko and nameko-amqp-retry: by headers; the expiration is the message's, its key a queue's name.
NAMEKO: list[One] = [
    Exchange("nameko-rpc", "topic"),
    queue("rpc-billing"),
    Binding("nameko-rpc", "rpc-billing", "billing.*"),
    queue("rpc.reply-billing-1", expires=300_000),
    Exchange("backoff", "headers"),
    queue("backoff--5000ms", expires=10_000, dead_letter_exchange=""),
    Binding(
        "backoff", "backoff--5000ms", "", arguments=Arguments({"backoff": 5_000, "x-match": "any"})
    ),
]
# dramatiq/brokers/rabbitmq.py: a delay queue that workers read, dead letters for a week.
DRAMATIQ: list[One] = [
    queue("default", dead_letter_exchange="", dead_letter_routing_key="default.XQ"),
    queue("default.DQ", dead_letter_exchange="", dead_letter_routing_key="default.XQ"),
    queue("default.XQ", message_ttl=7 * DAY_MS),
]
# rascal 21, examples/advanced/config.js: what is retried comes back by its CC key, the name of its
# queue before its own key; exchanges are topics by default (lib/config/baseline.js).
RASCAL: list[One] = [
    *(Exchange(name, "topic") for name in ("service", "delay", "retry", "dead_letters")),
    *(
        queue(
            f"registration_service:user:{action}",
            dead_letter_exchange="dead_letters",
            dead_letter_routing_key="registration_service.dead_letter",
        )
        for action in ("save", "delete")
    ),
    queue("delay:1m", message_ttl=60_000, dead_letter_exchange="retry"),
    queue("dead_letters:registration_service"),
    Binding("service", "registration_service:user:save", "registration_webapp.user.created.#"),
    Binding("service", "registration_service:user:delete", "registration_webapp.user.deleted.#"),
    Binding("delay", "delay:1m", "delay.1m"),
    *(
        Binding("retry", name, f"{name}.#")
        for name in ("registration_service:user:save", "registration_service:user:delete")
    ),
    Binding(
        "dead_letters", "dead_letters:registration_service", "registration_service.dead_letter"
    ),
]
TOPOLOGIES: dict[str, Sequence[One]] = {
    "NServiceBus": NSERVICEBUS,
    "MassTransit": MASSTRANSIT,
    "Celery": CELERY,
    "Spring": SPRING,
    "EasyNetQ": EASYNETQ,
    "Sneakers": SNEAKERS,
    "Nameko": NAMEKO,
    "Dramatiq": DRAMATIQ,
    "Rascal": RASCAL,
}


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.6"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_of_a_library_has_notes_at_most(name: str, version: str) -> None:
    found = find(a_snapshot(Definitions.of(TOPOLOGIES[name]), version=version))
    bad = [one.rule.id for one in found if one.severity > Severity.STYLE]
    # MassTransit delays with a plugin that RabbitMQ 4.3 does not have.
    assert bad == (["F30"] if (name, version) == ("MassTransit", "4.3.6") else [])
