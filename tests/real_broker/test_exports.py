"""Exported definitions and permissions on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
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
from topology.exports.permissions import Permissions, of_consumer, of_publisher
from topology.operations import provision
from topology.operations.definitions_files import export_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS

pytestmark = [pytest.mark.django_db, newest_generation]

SECOND = timedelta(seconds=1)
USER = "least"


REFUSED = (ChannelClosedByBroker, BrokerError)
WANT_OF_PERMISSION = "(?i)refused|permission|not authori[sz]ed"


@pytest.fixture
def least(
    broker_node: PrivateNode, vhost: Vhost, accounts_go: None
) -> Callable[[tuple[str, str, str]], Vhost]:
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


def publish(pattern: Pattern, params: object, vhost: Vhost, delays: Iterable[timedelta]) -> None:
    """Declare and publish to `work` as the routes say, and as they bind it."""
    with channel_of(vhost) as channel:
        for delay in delays:
            route = pattern.route(params, delay, "work")
            for obj in route.declares:
                _declare_by_amqp(obj, channel)
            channel.basic_publish(route.exchange, route.routing_key, b"")
            for binding in route.declares.bindings:
                channel.basic_publish("", binding.destination, b"")


@contextmanager
def channel_of(vhost: Vhost) -> Iterator[BlockingChannel]:
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def _declare_by_amqp(obj: BrokerObject, channel: BlockingChannel) -> None:
    match obj:
        case Queue():
            channel.queue_declare(obj.name, durable=True, arguments=dict(obj.arguments))
        case Binding(destination_is_queue=True):
            channel.queue_bind(obj.destination, obj.source, obj.routing_key)


def consume(queue: str, vhost: Vhost) -> None:
    with channel_of(vhost) as channel:
        channel.basic_consume(queue, lambda *given: None)


LEVELS = delay_levels_params.Params("own", "shop", 2)
HOLDS = hold_queues_params.Params("", ("work",), (SECOND,), "generous")
PAIR = retry_pair.parse({"name": "orders", "delay": "100ms"})
LOOP = retry_loop.parse({"name": "orders", "delay": "100ms", "return_path": "separate"})


def declare_all(vhost: Vhost, pattern: Pattern, params: Any) -> Definitions:
    """The topology, with the queue `work` bound where its routes bind it; all that is there."""
    declare_in(vhost, *pattern.definitions(params))
    if pattern in (delay_levels, hold_queues):
        declare_in(vhost, Queue("work"), *pattern.route(params, 0 * SECOND, "work").declares)
    with Management(address_of(vhost)) as management:
        return observe(management).definitions


@pytest.mark.parametrize(
    ("pattern", "params", "delays"),
    [
        (retry_pair, PAIR, (0, 1)),
        (delay_levels, LEVELS, (0, 1, 2, 3)),
        (hold_queues, HOLDS, (0, 1)),
    ],
    ids=["retry_pair", "delay_levels", "hold_queues"],
)
def test_a_publisher_needs_each_of_its_permissions(
    pattern: Pattern,
    params: object,
    delays: tuple[int, ...],
    vhost: Vhost,
    least: Callable[[tuple[str, str, str]], Vhost],
) -> None:
    found = declare_all(vhost, pattern, params)
    permissions = of_publisher(pattern, params, found)
    waits = [number * SECOND for number in delays]
    # First: of a queue that exists, RabbitMQ checks only the permission to configure it.
    for fewer in less(permissions):
        with pytest.raises(REFUSED, match=WANT_OF_PERMISSION):
            publish(pattern, params, least(fewer.patterns()), waits)
    publish(pattern, params, least(permissions.patterns()), waits)


def test_nservicebus_may_publish_each_delay(
    vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    params = delay_levels_params.Params("nsb-v1")
    found = declare_all(vhost, delay_levels, params)
    permissions = of_publisher(delay_levels, params, found)
    waits = [20 * SECOND, *(2**level * SECOND for level in range(28))]
    publish(delay_levels, params, least(permissions.patterns()), waits)


def test_a_publisher_of_a_retry_loop_sends_new_and_delayed_messages(
    vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    found = declare_all(vhost, retry_loop, LOOP)
    as_publisher = least(of_publisher(retry_loop, LOOP, found).patterns())
    with channel_of(as_publisher) as channel:
        for exchange in (LOOP.input_exchange, LOOP.back_exchange, LOOP.dead_exchange):
            channel.basic_publish(exchange, "", b"")


def test_a_consumer_needs_to_read_its_queue_alone(
    vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    objects = retry_pair.definitions(PAIR)
    declare_in(vhost, *objects)
    permissions = of_consumer(retry_pair, PAIR, objects)
    consume("orders", least(permissions.patterns()))
    with pytest.raises(REFUSED, match=WANT_OF_PERMISSION):
        consume("orders", least(Permissions().patterns()))


# Runs an example, which would consume for ever, until it gives up, or its second message comes.
PROGRAM = """
import sys
import pika

url, example = sys.argv[1:]
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
ends_itself = "give_up" in example or "inform_someone" in example
calls = []


def work(body):
    calls.append(body)
    if len(calls) == 2 and not ends_itself:
        sys.exit()
    return False


def give_up(properties, body):
    channel.confirm_delivery()
    channel.basic_publish("", "people", body, mandatory=True)
    sys.exit()


inform_someone = sys.exit
is_hopeless = lambda body: False
body, destination, routing_key, seconds, ms = b"", "work", "work", 20, 20_000
exec(example.replace("inform_someone(properties, body)", "inform_someone()"))
"""


EXAMPLES: dict[str, dict[str, str]] = {
    "retry_pair": {"name": "orders", "delay": "100ms"},
    "retry_loop": {"name": "orders", "delay": "100ms"},
    "retry_ladder": {"name": "orders", "delays": "100ms,200ms"},
    "quorum_retry": {"name": "orders", "shortest": "100ms", "longest": "100ms"},
    "delay_queues": {"queue": "orders", "delays": "1s"},
    "busy_wait": {"queue": "orders", "delays": "100ms"},
    "delay_levels": {"preset": "own", "prefix": "shop", "levels": "6", "unit": "1s"},
    "hold_queues": {"exchange": "", "keys": "work"},
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_example_runs_with_the_permissions_of_its_role(
    kind: str, vhost: Vhost, least: Callable[[tuple[str, str, str]], Vhost]
) -> None:
    """The consumer declares and gives up; no tested broker can have the delayed-message plugin."""
    pattern = PATTERNS[kind]
    params = pattern.parse(EXAMPLES[kind])
    # Work queues of others, and where an example parks.
    declare_in(vhost, *map(Queue, ("people", "parked", "orders_parked")))
    found = declare_all(vhost, pattern, params)
    code = pattern.consumer_example(params)
    if "consume(" not in code:
        permissions = of_publisher(pattern, params, found)
    else:
        if found.queue("orders") is None:
            declare_in(vhost, Queue("orders"))
            found |= Definitions.of([Queue("orders")])
        permissions = of_consumer(pattern, params, found, declares=True)
        with channel_of(vhost) as channel:
            for _ in range(2):
                channel.basic_publish("", pattern.targets(params)[0], b"")
    url = least(permissions.patterns()).amqp_url
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


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
