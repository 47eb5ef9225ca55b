"""A thousand looks into every kind of queue: all is as it was, or the look was refused."""

from __future__ import annotations

import base64
import json
import urllib.request
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from delayboard.dead_letters.parked.consume import make_store
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.peek import count_deliveries
from delayboard.demo.node import PrivateNode
from delayboard.models import ParkedMessage, PeekCount
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually, make_broker
from tests.publishing import publisher
from tests.topology.builders import NOON, a_queue
from topology import snapshots
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.errors import Unsupported
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Message, Publish
from topology.models import Broker
from topology.snapshot import Snapshot

pytestmark = [pytest.mark.django_db(transaction=True), every_generation]

# A limit ends them at the seventeenth at the latest.
LOOKS, MANY_LOOKS = 40, 1000
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"type": "quorum"},
    "limited": {"type": "quorum", "x_delivery_limit": 20},
    "unlimited": {"type": "quorum", "x_delivery_limit": -1},
    "delayed retry of all": {"type": "quorum", "x_delayed_retry_type": "all"},
    "delayed retry of failed": {"type": "quorum", "x_delayed_retry_type": "failed"},
}
# Kind -> how many looks are made, of as many, by the generation of the broker. On 4.3 the
# messages of an unlimited queue go to its end one after the other: a look takes all, so in order.
# Brokers before 4.3 take a delayed retry for an argument of somebody else.
MADE = {
    "3.10": {"classic": MANY_LOOKS, "limited": 17},
    "4.0": dict.fromkeys(KINDS, 17) | {"classic": MANY_LOOKS, "unlimited": 0},
    "4.3": dict.fromkeys(KINDS, MANY_LOOKS) | {"delayed retry of all": 0},
}


def generation(snapshot: Snapshot) -> str:
    return ".".join(snapshot.version.split(".")[:2])


def filled(vhost: Vhost, queue: Queue, count: int = 3) -> None:
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(queue)
    with publisher(address, "test") as channel:
        for number in range(count):
            stated = {"delivery_mode": 2, "message_id": f"m{number}"}
            properties = build_properties({"n": number, "price": 1.5}, **stated)
            channel.publish(Publish("", queue.name, properties, b"body %d" % number))


def seen(broker: Broker, name: str) -> tuple[Queue, Snapshot]:
    snapshot = snapshots.poll(broker, 20).snapshot
    assert snapshot is not None
    queue = snapshot.definitions.queue(name)
    assert queue is not None
    # As soon after a declare the numbers say nothing yet: not that it is empty.
    return queue, replace(snapshot, numbers={})


def content(vhost: Vhost, name: str) -> list[tuple[str, bytes, str | None]]:
    """Take all that is in a queue."""
    found = []
    with getter(address_of(vhost), name) as source:
        while delivery := source.get():
            source.ack([delivery.tag])
            message = delivery.message
            found.append((message.content_id, message.body, message.properties.message_id))
    return found


def looked(broker: Broker, queue: Queue, snapshot: Snapshot, times: int) -> tuple[int, list[Any]]:
    """How many looks were made, and what the last one saw."""
    made = 0
    peeked_messages: list[Any] = []
    store = make_store(broker, queue.name, None)
    for _ in range(times):
        try:
            found = peek.peek_queue(broker, queue, snapshot, store=store).peeked_messages
        except Unsupported:
            continue
        made += 1
        now = [(peeked_message.content_id, peeked_message.message.body) for peeked_message in found]
        assert made == 1 or now == peeked_messages
        peeked_messages = now
    return made, peeked_messages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("looks", [LOOKS, pytest.param(MANY_LOOKS, marks=pytest.mark.long)])
def test_many_looks_leave_bytes_count_and_order(vhost: Vhost, kind: str, looks: int) -> None:
    broker = make_broker(vhost)
    wanted = a_queue("dead", **KINDS[kind])
    filled(vhost, wanted)
    queue, snapshot = seen(broker, "dead")
    made, peeked_messages = looked(broker, queue, snapshot, looks)
    assert made == min(looks, MADE[generation(snapshot)].get(kind, 0))
    left = content(vhost, "dead")
    assert [body for _, body, _ in left] == [b"body 0", b"body 1", b"body 2"]
    assert not made or peeked_messages == [(content_id, body) for content_id, body, _ in left]


def management_looks(vhost: Vhost, times: int) -> None:
    """What the management UI does by default: “Nack message requeue true”."""
    asked = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "base64"}
    token = base64.b64encode(f"{vhost.username}:{vhost.password}".encode()).decode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(times):
        request = urllib.request.Request(
            f"{vhost.management_url}/api/queues/{quote(vhost.name, safe='')}/dead/get",
            data=json.dumps(asked).encode(),
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        with opener.open(request, timeout=30) as answer:
            answer.read()


def test_what_the_management_ui_destroys_at_look_21_survives_ours(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    wanted = a_queue("dead", type="quorum", x_delivery_limit=20)
    filled(vhost, wanted)
    queue, snapshot = seen(broker, "dead")
    looked(broker, queue, snapshot, 21)
    assert len(content(vhost, "dead")) == 3
    filled(vhost, wanted)
    management_looks(vhost, 21)
    destroys = snapshot.version_tuple < (4, 3)
    assert len(content(vhost, "dead")) == (0 if destroys else 3)


def test_looks_of_others_are_counted_with_ours(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    queue, snapshot = seen(broker, "dead")
    management_looks(vhost, 12)
    made, _ = looked(broker, queue, snapshot, 30)
    assert made == (30 if snapshot.version_tuple >= (4, 3) else 5)
    assert len(content(vhost, "dead")) == 3


def test_a_look_ends_at_a_message_with_few_deliveries_left(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20), 2)
    management_looks(vhost, 17)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20), 1)
    queue, snapshot = seen(broker, "dead")
    if snapshot.version_tuple < (4, 3):
        store = make_store(broker, queue.name, None)
        found = peek.peek_queue(broker, queue, snapshot, store=store)
        assert (len(found.peeked_messages), found.more) == (1, True)
        assert looked(broker, queue, snapshot, 1) == (0, [])
        assert PeekCount.objects.get().peeks == 18
    assert len(content(vhost, "dead")) == 3


def test_a_queue_that_was_seen_empty_begins_anew(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    queue, snapshot = seen(broker, "dead")
    looked(broker, queue, snapshot, 20)
    PeekCount.objects.update(last_at=NOON)
    content(vhost, "dead")

    def empty() -> Snapshot | None:
        found = snapshots.poll(broker, 20).snapshot
        numbers = found.numbers.get("dead") if found else None
        return found if numbers and numbers.messages == 0 else None

    known = eventually(empty, "the queue was seen empty")
    assert known is not None
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    made, _ = looked(broker, queue, known, 1)
    assert made == 1
    assert len(content(vhost, "dead")) == 3


def test_what_died_of_too_many_deliveries_begins_anew_where_looks_cost_some(vhost: Vhost) -> None:
    address = address_of(vhost)
    broker = make_broker(vhost)
    with Management(address) as management:
        management.declare_queue(a_queue("dead", type="quorum", x_delivery_limit=20))
        management.declare_queue(
            a_queue("work", type="quorum", x_delivery_limit=18, dlx="", key="dead")
        )
    with publisher(address, "test") as channel:
        channel.publish(Publish("", "work", build_properties(delivery_mode=2), b"body"))
    with Consumer(address, "work") as consumer:
        for _ in range(19):
            (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
            consumer.reject(delivery, requeue=True)
    queue, snapshot = seen(broker, "dead")
    found: list[Message] = []

    def arrived() -> bool:
        with getter(address, "dead") as source:
            if delivery := source.get():
                found.append(delivery.message)
        return bool(found)

    eventually(arrived, "it died")
    if snapshot.version_tuple < (4, 3):
        assert count_deliveries(found[0]) == 0
    looked(broker, queue, snapshot, 30)
    assert len(content(vhost, "dead")) == 1


class Broken(Exception):
    pass


def test_a_look_that_breaks_off_gives_back_by_nack(vhost: Vhost) -> None:
    """From 4.3 on a nack is no failed delivery, and a bare close is one of twenty."""
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    _, snapshot = seen(broker, "dead")
    for _ in range(30 if snapshot.version_tuple >= (4, 3) else 10):
        with suppress(Broken), getter(address_of(vhost), "dead") as source:
            source.get()
            source.get()
            raise Broken
    assert [body for _, body, _ in content(vhost, "dead")] == [b"body 0", b"body 1", b"body 2"]


def set_limit(node: PrivateNode, vhost: Vhost, limit: int, kind: str = "policies") -> None:
    body = {"pattern": "^dead$", "definition": {"delivery-limit": limit}, "apply-to": "queues"}
    call_api(node, "PUT", f"{kind}/{vhost.name}/limit", body)


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_lowered_limit_counts_for_the_next_peek(
    vhost: Vhost, broker_node: PrivateNode, kind: str
) -> None:
    """The broker enforces it at once; the queue's own answer shows it seconds later."""
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    queue, snapshot = seen(broker, "dead")
    assert looked(broker, queue, snapshot, 6)[0] == 6
    set_limit(broker_node, vhost, 5, kind)
    peeked, _ = looked(broker, queue, snapshot, 5)
    assert peeked == (5 if snapshot.version_tuple >= (4, 3) else 0)
    assert [body for _, body, _ in content(vhost, "dead")] == [b"body 0", b"body 1", b"body 2"]


def test_what_others_left_no_delivery_is_stored_before_it_is_acknowledged(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    broker = make_broker(vhost)
    filled(vhost, a_queue("dead", type="quorum", x_delivery_limit=20))
    management_looks(vhost, 7)
    queue, snapshot = seen(broker, "dead")
    set_limit(broker_node, vhost, 6)
    store = make_store(broker, "dead", None)
    found = peek.peek_queue(broker, queue, snapshot, store=store)
    is_counted = snapshot.version_tuple < (4, 3)
    assert (len(found.peeked_messages), found.has_stored) == (
        (1, True) if is_counted else (3, False)
    )
    if is_counted:
        assert bytes(ParkedMessage.objects.get().body.data) == b"body 0"
        with pytest.raises(peek.PeekRefused):
            peek.peek_queue(broker, queue, snapshot, store=store)
    left = [body for _, body, _ in content(vhost, "dead")]
    assert left == [b"body 0", b"body 1", b"body 2"][is_counted:]
