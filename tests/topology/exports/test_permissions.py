"""The least permissions on a topology: one rule for every pattern."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import PAIR, PARAMS, a_queue
from tests.topology.test_patterns import for_all, kind, routes, standing
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.exports.permissions import (
    PARKING,
    Permissions,
    as_commands,
    of_consumer,
    of_delayboard,
    of_publisher,
)
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import delay_chain
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.hold_queues.params import Params as Holds
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.retry_loop.form import parse
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair.params import Params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import KINDS
from topology.structure.find_chains import find_chains, make_chain

__all__ = ("kind",)
SECONDS_20 = timedelta(seconds=20)


Patterns = tuple[str, str, str]


def may(permissions: Permissions | Patterns, what: str, name: str) -> bool:
    """As RabbitMQ decides, by one of configure, write and read."""
    patterns = permissions if isinstance(permissions, tuple) else permissions.patterns()
    expressions = dict(zip(("configure", "write", "read"), patterns, strict=True))
    return re.search(expressions[what], name or "amq.default") is not None


def may_publish(permissions: Permissions, pattern: Pattern, params: Any, delay: timedelta) -> bool:
    """To the destination `work`, with what has to be declared before."""
    route = pattern.route(params, delay, "work")
    return may(permissions, "write", route.exchange) and all(
        may_create(permissions, obj) for obj in route.declares
    )


def may_create(permissions: Permissions | Patterns, obj: BrokerObject) -> bool:
    if isinstance(obj, Binding):
        return may(permissions, "read", obj.source) and may(permissions, "write", obj.destination)
    onward = (
        obj.dead_letter_exchange
        if isinstance(obj, Queue)
        else obj.arguments.text("alternate-exchange")
    )
    if onward is not None and not (
        may(permissions, "read", obj.name) and may(permissions, "write", onward)
    ):
        return False
    return may(permissions, "configure", obj.name)


def test_a_publisher_may_publish_each_delay_to_each_target(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        permissions = of_publisher(pattern, params, standing(pattern, params)).patterns()
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            assert may(permissions, "write", route.exchange)
            assert all(may_create(permissions, obj) for obj in route.declares)

    for_all(law, kind)


def test_who_declares_may_declare_the_whole_topology(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        found = standing(pattern, params)
        for make in (of_publisher, of_consumer):
            permissions = make(pattern, params, found, declares=True).patterns()
            assert all(may_create(permissions, obj) for obj in pattern.definitions(params))
        objects = pattern.definitions(params)
        ours = of_delayboard(pattern, params, found, objects).patterns()
        assert all(may_create(ours, obj) for obj in objects)
        assert all(may(ours, "read", queue.name) for queue in objects.queues)

    for_all(law, kind)


def test_the_least_permissions_on_a_retry_pair() -> None:
    roles = (
        ("publisher", of_publisher(retry_pair, PARAMS, PAIR)),
        ("consumer", of_consumer(retry_pair, PARAMS, PAIR)),
    )
    lines = as_commands(roles, "my shop").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "VHOST='my shop'",
        "rabbitmqctl set_permissions -p \"$VHOST\" publisher '^$' '^(orders|orders-retry)$' '^$'",
        # What it gives up goes to a queue of its choice.
        "rabbitmqctl set_permissions -p \"$VHOST\" consumer '^$' '^(amq\\.default)$' '^(orders)$'",
        "rabbitmqctl set_user_tags delayboard monitoring",
    ]


@pytest.mark.parametrize("preset", ["nsb-v1", "nsb-v2"])
@pytest.mark.parametrize("seconds", [1, 2, 3, 20, 60, 3600, 86_400, 2**28 - 1])
def test_nservicebus_may_publish_any_delay(preset: str, seconds: int) -> None:
    params = Levels(preset)
    permissions = of_publisher(delay_levels, params, delay_levels.definitions(params))
    route = delay_levels.route(params, timedelta(seconds=seconds), "work")
    assert may(permissions, "write", route.exchange)
    # Without a delay it addresses the queue by the default exchange.
    assert may(permissions, "write", "")


def test_celery_publishes_into_its_highest_level_and_by_the_exchange_of_its_queue() -> None:
    params = Levels("celery", destinations="exchanges")
    found = delay_levels.definitions(params) | Definitions.of(
        [
            Exchange("tasks", "topic"),
            Queue("work"),
            Binding("tasks", "work", "work"),
            Binding("tasks", "work", "#.work"),
            Binding("celery_delayed_delivery", "tasks", "#.work", destination_is_queue=False),
        ]
    )
    permissions = of_publisher(delay_levels, params, found)
    for name, is_allowed in [
        ("celery_delayed_27", True),
        ("tasks", True),
        ("celery_delayed_5", False),
        ("celery_delayed_delivery", False),
        ("", False),
    ]:
        assert may(permissions, "write", name) == is_allowed, name
    assert of_consumer(delay_levels, params, found).patterns() == ("^$", "^$", "^(work)$")
    worker = of_consumer(delay_levels, params, found, declares=True)
    assert all(may_create(worker, obj) for obj in found)


def test_the_publisher_of_a_retry_loop_may_send_new_messages_too() -> None:
    params = parse({"name": "a", "return_path": "separate"})
    found = retry_loop.definitions(params)
    permissions = of_publisher(retry_loop, params, found)
    assert params.input_exchange != params.back_exchange
    for exchange in (params.input_exchange, params.back_exchange, params.dead_exchange):
        assert may(permissions, "write", exchange)
    assert may(of_consumer(retry_loop, params, found), "write", "")


def test_any_delay_of_hold_queues_is_one_expression() -> None:
    params = Holds("orders")
    found = Definitions.of([Exchange("orders", "topic"), Queue("w"), Binding("orders", "w", "#")])
    permissions = of_publisher(hold_queues, Holds("orders", ("work",)), found)
    assert may_publish(permissions, hold_queues, params, SECONDS_20)
    assert may_publish(permissions, hold_queues, params, timedelta(days=30))
    assert not may(permissions, "configure", "delay.20000.orders.other")
    assert not may(permissions, "configure", "delay..orders.work")
    permissions = of_publisher(hold_queues, params, found)
    assert may(permissions, "configure", "delay.20000.orders.other")
    assert not may(permissions, "configure", "delay.20000.bills.work")
    offered = Holds("orders", ("work",), (SECONDS_20,))
    assert not may_publish(
        of_publisher(hold_queues, offered, found), hold_queues, params, 2 * SECONDS_20
    )
    # A rescheduled message has a delay that is not on offer.
    ours = of_delayboard(hold_queues, offered, found, Definitions())
    assert may_publish(ours, hold_queues, params, 2 * SECONDS_20)
    assert of_consumer(hold_queues, Holds("orders", ("work",)), found).read == {"w"}


def test_what_leads_to_a_queue_is_an_entry_and_what_leads_elsewhere_is_none() -> None:
    found = PAIR | Definitions.of(
        [
            Exchange("events", "topic"),
            Exchange("all", "fanout"),
            Exchange("bills"),
            Queue("bills"),
            Queue("later", arguments=PAIR.queue("orders-retry").arguments),  # type: ignore[union-attr]
            Binding("events", "orders", "order.#"),
            Binding("all", "events", "", destination_is_queue=False),
            Binding("all", "bills", "", destination_is_queue=False),
            Binding("bills", "bills", "b"),
            # Another's way to delay.
            Binding("waiting", "later", "k"),
        ]
    )
    permissions = of_publisher(retry_pair, PARAMS, found)
    assert {"events", "all"} <= permissions.write
    assert not permissions.write & {"bills", "waiting"}


def test_a_consumer_may_declare_where_it_parks() -> None:
    params = delay_queues.EXAMPLE
    found = delay_queues.definitions(params)
    assert PARKING in of_consumer(delay_queues, params, found, declares=True).configure
    found |= Definitions.of([Queue("orders_parked"), Queue("bills_parked")])
    configure = of_consumer(delay_queues, params, found, declares=True).configure
    assert "orders_parked" in configure
    assert not configure & {PARKING, "bills_parked"}


def test_a_destination_that_is_not_bound_yet_is_for_a_person_to_name() -> None:
    params = delay_levels.EXAMPLE
    found = delay_levels.definitions(params)
    _, write, _ = of_publisher(delay_levels, params, found).patterns()
    assert "DESTINATION" in write
    bound = found | delay_levels.route(params, delay_levels.longest(params), "sales").declares
    _, write, _ = of_publisher(delay_levels, params, bound).patterns()
    assert "sales" in write
    assert "DESTINATION" not in write


@pytest.mark.parametrize("preset", ["nsb-v1", "nsb-v2", "celery"])
def test_no_expression_of_a_large_topology_is_longer_than_rabbitmq_takes(preset: str) -> None:
    params = Levels(preset)
    objects = delay_levels.definitions(params)
    roles = [
        of_publisher(delay_levels, params, objects, declares=True),
        of_consumer(delay_levels, params, objects, declares=True),
        of_delayboard(delay_levels, params, objects, objects),
    ]
    for permissions in roles:
        assert max(len(one) for one in permissions.patterns()) <= 1024
        names = {name for name in permissions.configure if not name.startswith("delayboard")}
        assert len(names) >= 29
        assert all(may(permissions, "configure", name) for name in names)
        assert not may(permissions, "configure", max(names) + "9")
        assert not may(permissions, "configure", "celery_delayed_28")
    assert may(roles[-1], "write", f"{max(q.name for q in objects.queues)}.replacement.in")
    assert "# RabbitMQ" not in as_commands([("a", roles[-1])], "/")


def test_an_expression_that_is_too_long_all_the_same_is_said() -> None:
    text = as_commands([("a", Permissions(read={f"{n}{'x' * 200}" for n in range(9)}))], "/")
    assert "RabbitMQ 4.3 and later refuse this line: an expression has" in text


def test_names_are_no_expressions() -> None:
    params = Params("a.b*(c)|$", timedelta(seconds=5))
    read = of_consumer(retry_pair, params, Definitions()).patterns()[2]
    assert re.fullmatch(read, "a.b*(c)|$")
    assert not re.fullmatch(read, "axb*(c)|$")


def test_who_states_delays_in_messages_may_publish_into_a_chain_of_others() -> None:
    """No delay of it is on offer, so that no route was computed and nothing was permitted."""
    found = Definitions.of([a_queue("mail.delay", dlx="", key="mail"), Queue("mail")])
    params = claim(make_chain("mail", ["mail.delay"], found), found)
    publisher = of_publisher(delay_chain, params, found)
    assert may(publisher, "write", "amq.default")
    assert of_consumer(delay_chain, params, found).read == {"mail"}


def adopt(kind: str, *objects: BrokerObject) -> tuple[Pattern, Any, Definitions]:
    """The only chain of others in a vhost with these objects."""
    found = Definitions.of(objects)
    (chain,) = find_chains(found)
    return KINDS[kind], claim(chain, found), found


def test_a_consumer_may_publish_what_failed_into_a_chain_that_clients_publish_into() -> None:
    """As rascal does: to the exchange `delay`, to whichever of its queues the message was for."""
    pattern, params, found = adopt(
        "retry_chain",
        Exchange("service", "topic"),
        Exchange("delay", "topic"),
        Exchange("retry", "topic"),
        Queue("save"),
        Queue("delete"),
        a_queue("delay:1m", ttl=60_000, dlx="retry"),
        Binding("service", "save", "user.created.#"),
        Binding("delay", "delay:1m", "delay.1m"),
        Binding("retry", "save", "save.#"),
        Binding("retry", "delete", "delete.#"),
    )
    consumer = of_consumer(pattern, params, found)
    assert (consumer.write, consumer.read) == ({"delay", "amq.default"}, {"save", "delete"})
    assert of_publisher(pattern, params, found).write == {"service", "delay", "amq.default"}


def test_a_consumer_whose_rejects_enter_a_chain_needs_no_right_to_publish_there() -> None:
    pattern, params, found = adopt(
        "retry_chain",
        a_queue("work", dlx="failed", key="k"),
        Exchange("failed"),
        a_queue("wait", ttl=60_000, dlx="", key="work"),
        Binding("failed", "wait", "k"),
    )
    assert "failed" not in of_consumer(pattern, params, found).write


def test_a_publisher_may_enter_a_chain_between_its_queues() -> None:
    """The exit of one delay is the entry of another, where shorter delays are published."""
    pattern, params, found = adopt(
        "delay_chain",
        Exchange("long"),
        Exchange("short"),
        a_queue("wait-1h", ttl=3_600_000, dlx="short", key="k"),
        a_queue("wait-1m", ttl=60_000, dlx="", key="work"),
        Queue("work"),
        Binding("long", "wait-1h", "k"),
        Binding("short", "wait-1m", "k"),
    )
    assert {"long", "short"} <= of_publisher(pattern, params, found).write


def test_of_an_exchange_that_every_vhost_has_only_the_bindings_are_permitted() -> None:
    pattern, params, found = adopt(
        "delay_chain",
        Exchange("amq.direct"),
        a_queue("wait", ttl=60_000, dlx="amq.direct", key="k"),
        Queue("work"),
        Binding("amq.direct", "work", "k"),
    )
    declaring = of_publisher(pattern, params, found, declares=True)
    assert declaring.configure == {"wait", "work"}
    assert all(may_create(declaring, one) for one in found if not isinstance(one, Exchange))


def test_the_consumer_of_hold_queues_reads_the_queues_of_all_keys() -> None:
    found = Definitions.of(
        [Exchange("orders"), Queue("a"), Queue("b"), *(Binding("orders", n, n) for n in "ab")]
    )
    params = Holds("orders", ("a", "b"))
    assert of_consumer(hold_queues, params, found).read == {"a", "b"}
