"""Delays as the public sources of libraries declare them, that are not run as clients here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.provisioning.recognition import recognize
from topology.structure.find_chains import find_chains

Shape = tuple[Sequence[BrokerObject], set[str]]

# https://docs.spring.io/spring-amqp/reference/amqp/resilience-recovering-from-errors-and-broker-failures.html
SPRING_AMQP: Shape = (
    [
        Exchange("orders", "topic"),
        Exchange("orders.dlx"),
        a_queue("orders.in", dlx="orders.dlx", key="retry"),
        a_queue("orders.wait", ttl=30_000, dlx="orders", key="order.retry"),
        a_queue("orders.parking"),
        Binding("orders", "orders.in", "order.#"),
        Binding("orders.dlx", "orders.wait", "retry"),
        Binding("orders.dlx", "orders.parking", "park"),
    ],
    {"Failed messages of orders.in wait 30s in orders.wait, then return."},
)
# spring-cloud-stream-binder-rabbit: autoBindDlq, dlqTtl, dlqDeadLetterExchange=""
SPRING_CLOUD_STREAM: Shape = (
    [
        Exchange("orders", "topic"),
        Exchange("DLX"),
        a_queue("orders.billing", dlx="DLX", key="orders.billing"),
        a_queue("orders.billing.dlq", ttl=5000, dlx="", key="orders.billing"),
        Binding("orders", "orders.billing", "#"),
        Binding("DLX", "orders.billing.dlq", "orders.billing"),
    ],
    {"Failed messages of orders.billing wait 5s in orders.billing.dlq, then return."},
)
# symfony/amqp-messenger Connection.php: getRoutingKeyForDelay, createDelayQueue
SYMFONY: Shape = (
    [
        Exchange("messages", "fanout"),
        Exchange("delays"),
        a_queue("messages"),
        a_queue("delay_messages__5000_delay", ttl=5000, dlx="messages", key="", x_expires=15_000),
        a_queue("delay_messages__1000_retry", ttl=1000, dlx="", key="messages", x_expires=11_000),
        Binding("messages", "messages", ""),
        Binding("delays", "delay_messages__5000_delay", "delay_messages__5000_delay"),
        Binding("delays", "delay_messages__1000_retry", "delay_messages__1000_retry"),
    ],
    {
        "New and failed messages wait 1s or 5s in delay_messages__1000_retry and "
        "delay_messages__5000_delay, then arrive in messages."
    },
)
# vyuldashev/laravel-queue-rabbitmq RabbitMQQueue.php: laterRaw
LARAVEL: Shape = (
    [
        a_queue("default"),
        a_queue("default.delay.10000", ttl=10_000, dlx="", key="default", x_expires=20_000),
        a_queue("default.delay.60000", ttl=60_000, dlx="", key="default", x_expires=120_000),
    ],
    {
        "Messages wait 10s or 1m in default.delay.10000 and default.delay.60000, then arrive in "
        "default."
    },
)
# jondot/sneakers handlers/maxretry.rb
SNEAKERS: Shape = (
    [
        Exchange("work-retry", "topic"),
        Exchange("work-retry-requeue", "topic"),
        Exchange("work-error", "topic"),
        a_queue("work", dlx="work-retry"),
        a_queue("work-retry", ttl=60_000, dlx="work-retry-requeue"),
        a_queue("work-error"),
        Binding("work-retry", "work-retry", "#"),
        Binding("work-retry-requeue", "work", "#"),
        Binding("work-error", "work-error", "#"),
    ],
    {"Failed messages of work wait 1m in work-retry, then return."},
)
# EasyNetQ DeadLetterExchangeAndMessageTtlScheduler.cs
EASYNETQ: Shape = (
    [
        Exchange("Order_Sent", "topic"),
        Exchange("Order_Sent_00_00_30", "topic"),
        a_queue("Order_Sent_00_00_30", ttl=30_000, dlx="Order_Sent"),
        a_queue("billing"),
        Binding("Order_Sent_00_00_30", "Order_Sent_00_00_30", "#"),
        Binding("Order_Sent", "billing", "#"),
        a_queue("EasyNetQ_Default_Error_Queue"),
    ],
    {"Messages wait 30s in Order_Sent_00_00_30, then arrive in billing."},
)
# MassTransit's error and skipped queues, and Wolverine's dead-letter queue, delay nothing.
MASSTRANSIT: Shape = (
    [
        Exchange("orders", "fanout"),
        Exchange("orders_error", "fanout"),
        a_queue("orders"),
        a_queue("orders_error"),
        a_queue("orders_skipped"),
        Binding("orders", "orders", ""),
        Binding("orders_error", "orders_error", ""),
    ],
    set(),
)
WOLVERINE: Shape = (
    [
        Exchange("wolverine-dead-letter-queue"),
        a_queue("orders", dlx="wolverine-dead-letter-queue"),
        a_queue("wolverine-dead-letter-queue"),
        Binding("wolverine-dead-letter-queue", "wolverine-dead-letter-queue", "orders"),
    ],
    set(),
)
# dramatiq's worker holds what waits in `.DQ`; `.XQ` keeps dead letters for seven days.
DRAMATIQ: Shape = (
    [
        a_queue("orders", dlx="", key="orders.XQ"),
        a_queue("orders.DQ", dlx="", key="orders.XQ"),
        a_queue("orders.XQ", ttl=604_800_000),
    ],
    {
        "Workers of dramatiq hold new and failed messages of orders.DQ until they are due, then "
        "publish them to orders."
    },
)
# A work queue whose old messages become dead letters.
RETENTION: Shape = (
    [a_queue("orders", ttl=86_400_000, dlx="", key="orders.dlq"), a_queue("orders.dlq")],
    set(),
)
SHAPES = {
    name.lower(): shape
    for name, shape in list(globals().items())
    if name.isupper() and isinstance(shape, tuple) and name != "SHAPES"
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_chains_of_a_library_are_found_and_said_in_one_sentence(name: str) -> None:
    objects, phrases = SHAPES[name]
    assert {chain.phrase for chain in find_chains(Definitions.of(objects))} == phrases


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_library_declared_is_adopted_as_it_is(name: str) -> None:
    """Sneakers names its retry queue as a retry pair does, and dead-letters elsewhere."""
    found = recognize(a_snapshot(Definitions.of(SHAPES[name][0]))).found
    assert bool(found) == bool(SHAPES[name][1])
    plans = [one.plan for one in found]
    assert {change.sign for plan in plans if plan for change in plan.changes} <= {"present"}


def test_consumers_show_what_names_leave_open() -> None:
    plain = [a_queue("a", ttl=5000, dlx="", key="b"), a_queue("b", dlx="", key="a")]
    (chain,) = find_chains(Definitions.of(plain))
    assert chain.phrase == "Failed messages of b wait 5s in a, then return."
    untimed = [a_queue("a", dlx="", key="b"), a_queue("b", dlx="", key="a")]
    assert find_chains(Definitions.of(untimed)) == []
    (chain,) = find_chains(Definitions.of(untimed), frozenset({"b"}))
    assert chain.phrase == (
        "Failed messages of b wait as long as their own expiration states in a, then return."
    )
