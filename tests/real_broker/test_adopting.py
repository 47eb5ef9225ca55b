"""What others built on a real broker: found, adopted without a change, then recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pika
import pytest
from django.conf import settings
from pika.adapters.blocking_connection import BlockingChannel
from pytest_django import Settings

from analytics.models import ScheduledMessage
from analytics.recorder import retired_taps
from analytics.recorder.record import record
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import follow_log
from tests.brokers import NEWEST, Vhost, call_api
from tests.builders import address_of, eventually, make_broker, make_pair
from tests.topology.builders import is_complete
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Broker, State, Topology
from topology.operations import adopt, provision
from topology.operations.ownership import Refusal
from topology.operations.replace_tap import read_taps, replace_tap
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import Found, recognize

pytestmark = pytest.mark.django_db(transaction=True)

LEVELS = 28
SECONDS = 30.0
DELIVERY = "nsb.v2.delay-delivery"


def level(number: int) -> str:
    return f"nsb.v2.delay-level-{number:02}"


def build_levels(channel: BlockingChannel) -> None:
    """As NServiceBus.RabbitMQ declares them, but for one binding that somebody took away."""
    channel.exchange_declare(DELIVERY, "topic", durable=True)
    channel.queue_declare("sales", durable=True)
    channel.queue_bind("sales", DELIVERY, "#.sales")
    for number in range(LEVELS):
        below = level(number - 1) if number else DELIVERY
        stated = {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-message-ttl": 1000 * 2**number,
            "x-dead-letter-exchange": below,
        }
        skipped = "*." * (LEVELS - 1 - number)
        channel.exchange_declare(level(number), "topic", durable=True)
        channel.queue_declare(level(number), durable=True, arguments=stated)
        channel.queue_bind(level(number), level(number), f"{skipped}1.#")
        if number != 13:
            channel.exchange_bind(below, level(number), f"{skipped}0.#")


def build_pair(channel: BlockingChannel) -> None:
    for name, other, ttl in (("orders", "orders-retry", 0), ("orders-retry", "orders", 700)):
        stated: dict[str, Any] = {"x-dead-letter-exchange": other}
        channel.exchange_declare(name, "direct", durable=True)
        channel.queue_declare(
            name, durable=True, arguments=stated | ({"x-message-ttl": ttl} if ttl else {})
        )
        channel.queue_bind(name, name, "new")


def build_holds(channel: BlockingChannel) -> None:
    channel.exchange_declare("shop", "topic", durable=True)
    for ms in (5_000, 60_000):
        stated = {
            "x-message-ttl": ms,
            "x-dead-letter-exchange": "shop",
            "x-dead-letter-routing-key": "created",
            "x-expires": ms + 60_000,
        }
        channel.queue_declare(f"delay.{ms}.shop.created", durable=True, arguments=stated)


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    """A vhost that people built by hand, and a channel on it."""
    connection = pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))
    opened = connection.channel()
    build_levels(opened)
    build_pair(opened)
    build_holds(opened)
    yield opened
    connection.close()


@pytest.fixture
def broker(vhost: Vhost, channel: BlockingChannel) -> Broker:
    return make_broker(vhost)


def found_in(vhost: Vhost) -> dict[str, Found]:
    with Management(address_of(vhost)) as management:
        return {one.use.kind: one for one in recognize(observe(management)).found}


def defined(node: PrivateNode, vhost: Vhost) -> list[str]:
    """Every definition of the vhost, as the broker itself exports it."""
    exported = call_api(node, "GET", f"definitions/{vhost.name}")
    return sorted(
        json.dumps(each, sort_keys=True)
        for kind in exported.values()
        if isinstance(kind, list)
        for each in kind
    )


def adopt_all(vhost: Vhost, broker: Broker) -> dict[str, Topology]:
    return {
        kind: adopt.adopt(None, broker, kind, one.use.name)[0]
        for kind, one in found_in(vhost).items()
    }


def test_what_was_built_by_hand_is_found_with_what_is_missing(vhost: Vhost, broker: Broker) -> None:
    found = found_in(vhost)
    assert set(found) == {"delay_levels", "hold_queues", "retry_pair"}
    assert found["delay_levels"].use.params == delay_levels_params.Params("nsb-v2")
    plan = found["delay_levels"].plan
    assert plan is not None
    (missing,) = plan.select("create")
    assert missing.object.identity[1:4] == (level(13), "exchange", level(12))
    assert plan.is_applicable
    for kind in ("hold_queues", "retry_pair"):
        assert is_complete(found[kind])
    assert found["retry_pair"].use.params == retry_pair.parse(
        {"name": "orders", "delay": "700ms", "routing_key": "new"}
    )


def test_adopting_and_giving_up_again_changes_nothing_on_the_broker(
    broker_node: PrivateNode, vhost: Vhost, broker: Broker
) -> None:
    before = defined(broker_node, vhost)
    adopted = adopt_all(vhost, broker)
    assert len(adopted) == 3
    assert defined(broker_node, vhost) == before
    for topology in adopted.values():
        assert (topology.state, topology.owned) == (State.APPLIED, [])
        provision.remove(None, topology)
    assert defined(broker_node, vhost) == before


def test_an_adopted_set_is_completed_by_its_plan_and_torn_down_to_what_others_made(
    broker_node: PrivateNode, vhost: Vhost, broker: Broker
) -> None:
    before = defined(broker_node, vhost)
    levels = adopt_all(vhost, broker)["delay_levels"]
    assert provision.apply(None, levels).created == 1
    assert len(defined(broker_node, vhost)) == len(before) + 1
    assert provision.check(None, levels).holds
    provision.remove(None, levels)
    assert defined(broker_node, vhost) == before


def record_until(topology: Topology, is_enough: Callable[[], bool]) -> None:
    stop = Event()
    deadline = time.monotonic() + SECONDS

    def beat(counters: Any) -> None:
        follow_log(settings.EVENT_LOG)
        if is_enough():
            stop.set()
        assert time.monotonic() < deadline, f"only {counters} after {SECONDS} seconds"

    record(topology.pk, stop=stop, beat=beat)


def test_what_waited_when_it_was_adopted_is_unseen_and_what_comes_after_is_recorded(
    broker_node: PrivateNode,
    vhost: Vhost,
    broker: Broker,
    channel: BlockingChannel,
    event_log: Any,
    settings: Settings,
) -> None:
    channel.basic_publish("orders-retry", "new", b"before")
    pair = adopt_all(vhost, broker)["retry_pair"]
    before = defined(broker_node, vhost)
    assert provision.start_recording(None, pair).created == 3
    added = set(defined(broker_node, vhost)) - set(before)
    assert len(added) == 3
    assert all(pair.tap_queue in one for one in added)
    assert pair.tap_type == "classic"
    eventually(lambda: channel.basic_get("orders", auto_ack=True)[0], "the first comes back")
    channel.basic_publish("orders-retry", "new", b"after, and longer")
    record_until(pair, lambda: ScheduledMessage.objects.filter(size=17).exists())
    assert ScheduledMessage.objects.filter(entered_at__isnull=False).count() == 1
    provision.remove(None, pair, typed_name=pair.name)
    assert defined(broker_node, vhost) == before


@pytest.mark.generations(NEWEST, only=True)
def test_a_stream_tap_of_an_adopted_topology_is_replaced_and_nothing_of_others_is_touched(
    broker_node: PrivateNode,
    vhost: Vhost,
    broker: Broker,
    channel: BlockingChannel,
    event_log: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retired_taps, "SILENCE_SECONDS", 1.0)
    pair = adopt_all(vhost, broker)["retry_pair"]
    before = defined(broker_node, vhost)
    with monkeypatch.context() as patched:
        patched.setattr(provision, "safest_tap", lambda *_: "stream")
        provision.start_recording(None, pair)
    channel.basic_publish("orders-retry", "new", b"into the stream")
    replace_tap(None, pair)
    channel.basic_publish("orders-retry", "new", b"into the classic queue")

    def is_done() -> bool:
        pair.refresh_from_db()
        return not read_taps(pair) and ScheduledMessage.objects.count() >= 2

    record_until(pair, is_done)
    sizes = set(ScheduledMessage.objects.values_list("size", flat=True))
    assert sizes == {len(b"into the stream"), len(b"into the classic queue")}
    added = set(defined(broker_node, vhost)) - set(before)
    assert len(added) == 3
    assert all(f"{pair.slug}.classic" in one for one in added)
    provision.remove(None, pair, typed_name=pair.name)
    assert defined(broker_node, vhost) == before


def test_a_message_in_a_delay_of_others_still_arrives_for_the_teardown_is_refused(
    vhost: Vhost, broker: Broker, channel: BlockingChannel
) -> None:
    pair = make_pair(broker, name="shipments")
    provision.apply(None, pair)
    stated = {
        "x-message-ttl": 1000,
        "x-dead-letter-exchange": "shipments",
        "x-dead-letter-routing-key": "shipments",
    }
    channel.queue_declare("late", durable=True, arguments=stated)
    channel.basic_publish("", "late", b"waits")
    refused = "The queue “late” dead-letters into the exchange “shipments”. Delete or change it"
    with pytest.raises(Refusal, match=refused):
        provision.remove(None, pair, typed_name=pair.name)
    eventually(lambda: channel.basic_get("shipments", auto_ack=True)[0], "what waited arrives")
    channel.queue_delete("late")
    provision.remove(None, pair, typed_name=pair.name)
    assert pair.state == State.DELETED
