"""Exported definitions and permissions on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, newest_generation
from tests.builders import address_of, declare_in, make_broker, make_pair
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Binding, BrokerObject, Definitions, Queue
from topology.exports.permissions import Permissions, of_consumer, of_delayboard, of_publisher
from topology.models import Topology
from topology.operations import provision
from topology.operations.export_topology import export_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.retry_pair.pattern import retry_pair

pytestmark = [pytest.mark.django_db, newest_generation]

SECOND = timedelta(seconds=1)
USER = "least"


REFUSED = (ChannelClosedByBroker, BrokerError)
WANT_OF_PERMISSION = "(?i)refused|permission|not authori[sz]ed"


@pytest.fixture
def least(broker_node: PrivateNode, vhost: Vhost) -> Callable[[tuple[str, str, str]], Vhost]:
    """Give a user these permissions, and return the vhost as that user sees it."""
    password = "a long enough password"
    call_api(broker_node, "PUT", f"users/{USER}", {"password": password, "tags": "monitoring"})

    def give(patterns: tuple[str, str, str]) -> Vhost:
        configure, write, read = patterns
        rights = {"configure": configure, "write": write, "read": read}
        call_api(broker_node, "PUT", f"permissions/{vhost.name}/{USER}", rights)
        place = vhost.amqp_url.rpartition("@")[2]
        url = f"amqp://{USER}:{quote(password)}@{place}"
        return replace(vhost, amqp_url=url, username=USER, password=password)

    return give


def less(permissions: Permissions) -> list[Permissions]:
    """The same with one name less."""
    found = []
    for kind in ("configure", "write", "read"):
        names = getattr(permissions, kind)
        found += [replace(permissions, **{kind: names - {name}}) for name in sorted(names)]
    return found


def publish(pattern: Pattern, params: object, vhost: Vhost, found: Definitions) -> None:
    """Declare and publish as the pattern's routes say."""
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for delay, target, _ in pattern.trials(params, found):
            route = pattern.route(params, delay, target)
            for obj in route.declares:
                _declare_by_amqp(obj, channel)
            channel.basic_publish(route.exchange, route.routing_key, b"")


def _declare_by_amqp(obj: BrokerObject, channel: BlockingChannel) -> None:
    match obj:
        case Queue():
            channel.queue_declare(obj.name, durable=True, arguments=dict(obj.arguments))
        case Binding(destination_is_queue=True):
            channel.queue_bind(obj.destination, obj.source, obj.routing_key)


def consume(queue: str, vhost: Vhost) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        connection.channel().basic_consume(queue, lambda *given: None)


LEVELS = delay_levels_params.Params("own", "shop", 2)
HOLDS = hold_queues_params.Params("", ("work",), (SECOND,), "generous")
PAIR = retry_pair.parse({"name": "orders", "delay": "1s"})


@pytest.mark.parametrize(
    ("pattern", "params", "bound"),
    [
        (retry_pair, PAIR, ()),
        (delay_levels, LEVELS, ("work",)),
        (hold_queues, HOLDS, ("work",)),
    ],
    ids=["retry_pair", "delay_levels", "hold_queues"],
)
def test_a_publisher_needs_each_of_its_permissions(
    pattern: Pattern,
    params: object,
    bound: tuple[str, ...],
    vhost: Vhost,
    least: Callable[[tuple[str, str, str]], Vhost],
) -> None:
    declare_in(vhost, *pattern.definitions(params), *map(Queue, bound))
    if pattern is delay_levels:
        declare_in(vhost, *delay_levels.route(LEVELS, SECOND, "work").declares)
    with Management(address_of(vhost)) as management:
        found = observe(management).definitions
    permissions = of_publisher(pattern, params, found)
    # First: of a queue that exists, RabbitMQ checks only the permission to configure it.
    for fewer in less(permissions):
        with pytest.raises(REFUSED, match=WANT_OF_PERMISSION):
            publish(pattern, params, least(fewer.patterns()), found)
    publish(pattern, params, least(permissions.patterns()), found)


def test_a_consumer_needs_to_read_its_queue_alone(
    vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    objects = retry_pair.definitions(PAIR)
    declare_in(vhost, *objects)
    permissions = of_consumer(retry_pair, PAIR, objects)
    consume("orders", least(permissions.patterns()))
    with pytest.raises(REFUSED, match=WANT_OF_PERMISSION):
        consume("orders", least(Permissions().patterns()))


def work_as_delayboard(topology: Topology, vhost: Vhost) -> None:
    """Apply, publish with a delay and without, read the tap and the queues."""
    provision.apply(None, topology)
    publish(topology.pattern, topology.parsed, vhost, Definitions())
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"")
    for queue in (topology.tap_queue, "orders", "orders-retry"):
        consume(queue, vhost)


def test_delayboard_needs_each_of_its_permissions(
    vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    broker = make_broker(least((".*", ".*", ".*")))
    topology = make_pair(broker)
    permissions = of_delayboard(
        topology.pattern, topology.parsed, Definitions(), topology.definitions
    )
    for fewer in less(permissions):
        as_user = least(fewer.patterns())
        with pytest.raises(REFUSED, match=WANT_OF_PERMISSION):
            work_as_delayboard(topology, as_user)
        remove_all(vhost)
    as_user = least(permissions.patterns())
    work_as_delayboard(topology, as_user)
    provision.remove(None, topology, typed_name="orders")
    with Management(address_of(vhost)) as management:
        assert not observe(management).declared.queues


def remove_all(vhost: Vhost) -> None:
    """As a user who may."""
    with Management(address_of(vhost)) as management:
        seen = observe(management).declared
        for queue in seen.queues:
            management.delete_queue(queue.name, only_if_empty=False)
        for exchange in seen.exchanges:
            if exchange.name and not exchange.name.startswith("amq."):
                management.delete_exchange(exchange.name)


def test_a_broker_imports_exported_definitions_as_the_plan_has_them(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    topology = make_pair(make_broker(vhost), tap_type="classic")
    document = json.loads(export_topology(topology, "definitions", Definitions()))
    call_api(broker_node, "POST", f"definitions/{vhost.name}", document)
    with Management(address_of(vhost)) as management:
        plan = provision.plan_for(topology, observe(management))
    created = {change.object.identity for change in plan.select("create")}
    assert plan.is_applicable
    assert created == {obj.identity for obj in topology.tap}
