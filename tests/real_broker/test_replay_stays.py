"""What a replay leaves where it was, and what it takes of a live queue."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.parked import park_queue
from delayboard.dead_letters.parked.consume import make_store
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay import batch_state, make_draft
from delayboard.dead_letters.replay.options import Options
from delayboard.models import (
    ParkedState,
)
from delayboard.models.replay import BatchState, ItemState, TargetMode
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.replaying import (
    DEAD,
    SECONDS,
    WORK,
    adds_up,
    arrived,
    at_rest,
    confirmed,
    depth,
    draft,
    park,
    reject,
    rejected,
    replayed,
    shop,
    states,
    worked_off,
)
from tests.real_broker.test_bit_for_bit import entries
from tests.topology.amqp_entries import table_entries
from topology import snapshots
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Binding, Queue
from topology.message import Message, Publish
from topology.models import Broker, Role

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    return make_broker(vhost)


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ann", Role.OPERATOR)


def test_a_returned_one_stays_parked_with_the_reason_and_the_others_go(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    with Management(address_of(vhost)) as management:
        management.bind(Binding(WORK, WORK, "other"))
    rejected(vhost, "m0")
    with publisher(address_of(vhost), "test") as channel:
        stated = build_properties({}, message_id="m1", delivery_mode=2)
        channel.publish(Publish(WORK, "other", stated, b"{}"))
    reject(vhost, 1)
    parked_messages = park(user, broker, 2)
    batch = draft(user, parked_messages)
    with Management(address_of(vhost)) as management:
        management.unbind(Binding(WORK, WORK, "other"))
    batch = replayed(user, batch)
    assert (batch.done, batch.returned) == (1, 1)
    assert states(parked_messages) == [ParkedState.PARKED, ParkedState.REPLAYED]
    item = batch.items.get(state=ItemState.RETURNED)
    assert item.parked_message == parked_messages[1]
    assert item.error
    assert [message.properties.message_id for message in arrived(vhost)] == ["m0"]
    assert adds_up(batch)


def test_what_only_our_own_tap_takes_is_returned(vhost: Vhost, user: User) -> None:
    topology = applied_pair(vhost, delay="100ms")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD))
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", DEAD, build_properties({}, message_id="m"), b"{}"))
    parked_messages = park(user, topology.broker, 1)
    batch = draft(user, parked_messages, TargetMode.TYPED, exchange=WORK, key=WORK)
    with Management(address_of(vhost)) as management:
        management.delete_queue(WORK, only_if_empty=True)
    batch = replayed(user, batch)
    assert batch.returned == 1
    assert "No queue but a tap of Delayboard" in batch.items.get().error
    assert states(parked_messages) == [ParkedState.PARKED]


@every_generation
def test_a_decimal_passes_a_tap(vhost: Vhost, user: User) -> None:
    topology = applied_pair(vhost, delay="100ms")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD))
    decimal = b"\x01dD\x01\x00\x00\x00\x0f"
    odd = read_properties(b"\x20\x00" + len(decimal).to_bytes(4, "big") + decimal)
    with publisher(address_of(vhost), "test") as channel:
        for properties in (build_properties({"n": 1}), odd, build_properties({"n": 2})):
            channel.publish(Publish("", DEAD, properties, b"{}"))
    parked_messages = park(user, topology.broker, 3)
    batch = draft(user, parked_messages, TargetMode.TYPED, exchange=WORK, key=WORK)
    batch = replayed(user, batch, despite_verdict=True)
    assert adds_up(batch)
    messages = arrived(vhost, number=3)
    assert b"d" in {name for m in messages for name in entries(headers_of(m))}


def headers_of(message: Message) -> bytes:
    raw = message.properties.raw
    found = raw[6:]
    assert table_entries(found)
    return found


def test_chosen_messages_of_a_queue_are_parked_first_and_the_others_stay(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "m0", "m1", "m2")
    confirmed(broker)
    eventually(lambda: depth(broker, DEAD) == 3, "all are dead", seconds=SECONDS)
    snapshot = snapshots.poll(broker, 20).snapshot
    assert snapshot is not None
    queue = snapshot.definitions.queue(DEAD)
    assert queue is not None
    seen = peek.peek_queue(
        broker, queue, snapshot, store=make_store(broker, queue.name, None)
    ).peeked_messages
    batch = make_draft.draft_peeked(user, broker, DEAD, [seen[1].handle], Options())
    worked_off(park_queue.KIND, park_queue.park)
    batch = at_rest(batch)
    assert (batch.state, batch.selected) == (BatchState.DRAFT, 1)
    assert replayed(user, batch).done == 1
    assert [message.properties.message_id for message in arrived(vhost)] == ["m1"]
    left = [message.properties.message_id for message in arrived(vhost, DEAD, 2)]
    assert left == ["m0", "m2"]


def test_of_two_replays_each_parked_message_is_in_one_and_both_are_told(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "m0", "m1", "m2")
    parked_messages = park(user, broker, 3)
    first, second = draft(user, parked_messages[:2]), draft(user, parked_messages[1:])
    batch_state.start(user, first, despite_verdict=False)
    batch_state.start(user, second, despite_verdict=False)
    first, second = at_rest(first), at_rest(second)
    assert (first.done, second.done, second.cancelled) == (2, 1, 1)
    assert f"replay {first.pk}" in second.items.get(state=ItemState.CANCELLED).error
    names = [message.properties.message_id for message in arrived(vhost, number=3)]
    assert sorted(name or "" for name in names) == ["m0", "m1", "m2"]
    assert adds_up(first)
    assert adds_up(second)
