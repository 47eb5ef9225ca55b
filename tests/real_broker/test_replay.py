"""Died on a real broker, parked, replayed: what arrives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import batch_state, targets
from delayboard.dead_letters.replay.edit_headers import Typed
from delayboard.dead_letters.replay.edit_message import edit_message
from delayboard.models import (
    ParkedMessage,
    ParkedState,
)
from delayboard.models.replay import BatchState, TargetMode
from delayboard.models.replay import ReplayOutcome as Seen
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.refusing import SAID, refuse_beside
from tests.real_broker.replaying import (
    DEAD,
    MS,
    SECONDS,
    WORK,
    adds_up,
    arrived,
    came_back_clean,
    draft,
    is_empty,
    next_of,
    park,
    recorded,
    reject,
    rejected,
    replayed,
    send,
    shop,
    states,
)
from tests.real_broker.test_bit_for_bit import every_type, reported
from tests.topology.stripping import stripped
from topology import snapshots
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Queue
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Publish
from topology.models import Broker, Role
from topology.operations import provision
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_ladder import params as retry_ladder_params
from topology.patterns.retry_ladder.pattern import retry_ladder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    return make_broker(vhost)


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ann", Role.OPERATOR)


def dies_of_rejection(vhost: Vhost, kind: str) -> None:
    shop(vhost, kind)
    rejected(vhost, "m")


def dies_of_age(vhost: Vhost, kind: str) -> None:
    shop(vhost, kind)
    stated = build_properties({"n": "m"}, message_id="m", delivery_mode=2, expiration="1")
    send(vhost, "m", properties=stated)


def dies_of_length(vhost: Vhost, kind: str) -> None:
    shop(vhost, kind, **{"x-max-length": 1})
    send(vhost, "m", "stays")


def dies_of_deliveries(vhost: Vhost, kind: str) -> None:
    shop(vhost, "quorum", **{"x-delivery-limit": 1})
    send(vhost, "m")
    reject(vhost, 2, requeue=True)


def test_what_another_queue_refused_is_unknown_and_is_replayed_marked_under_the_same_id(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "a", "b")
    messages = park(user, broker, 2)
    to_both: dict[str, Any] = {"mode": TargetMode.TYPED, "exchange": WORK, "key": WORK}
    with Management(address_of(vhost)) as management:
        refuse_beside(management, WORK, WORK)
        batch = replayed(user, draft(user, messages, **to_both))
        assert (batch.state, batch.done, batch.unknown) == (BatchState.DONE, 0, 2)
        assert all(f"{SAID}“orders”." in item.error for item in batch.items.all())
        assert states(messages) == [ParkedState.PARKED] * 2
        assert adds_up(batch)
        names = [message.headers[REPLAY_HEADER] for message in arrived(vhost, number=2)]
        management.delete_queue("log", only_if_empty=False)
    rest = replayed(user, draft(user, messages, **to_both))
    again = [message.headers[REPLAY_HEADER] for message in arrived(vhost, number=2)]
    assert names == again == [item.replay_id for item in batch.items.all()]
    assert (rest.done, rest.doubled) == (2, 2)
    assert states(messages) == [ParkedState.REPLAYED] * 2


def said_to_be_empty(broker: Broker, queue: str) -> bool:
    snapshot = snapshots.poll(broker, 20).snapshot
    return snapshot is not None and snapshot.numbers[queue].messages == 0


CAUSES = {
    "rejected": dies_of_rejection,
    "expired": dies_of_age,
    "maxlen": dies_of_length,
    "delivery_limit": dies_of_deliveries,
}


@every_generation
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("cause", CAUSES)
def test_whatever_it_died_of_it_arrives_where_it_was_published_before(
    vhost: Vhost, broker: Broker, user: User, cause: str, kind: str
) -> None:
    CAUSES[cause](vhost, kind)
    parked_messages = park(user, broker, 1)
    (parked_message,) = parked_messages
    assert (parked_message.group.reason, parked_message.message_id) == (cause, "m")
    if cause == "maxlen":
        arrived(vhost)
        eventually(lambda: said_to_be_empty(broker, WORK), "the broker's numbers say so too")
    batch = draft(user, parked_messages)
    route = batch.routes.get()
    assert (route.exchange, route.routing_key, route.is_good) == (WORK, WORK, True)
    batch = replayed(user, batch)
    assert (batch.state, batch.done, batch.doubled) == (BatchState.DONE, 1, 0)
    (back,) = arrived(vhost)
    came_back_clean(back, parked_message)
    assert back.properties.expiration is None
    assert states(parked_messages) == [ParkedState.REPLAYED]
    assert adds_up(batch)


def test_after_rounds_of_a_retry_pair_it_goes_to_the_work_queue(vhost: Vhost, user: User) -> None:
    topology = applied_pair(vhost, delay="100ms")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD))
    send(vhost, "m0", "m1")
    with (
        publisher(address_of(vhost), "test") as channel,
        Consumer(address_of(vhost), WORK) as consumer,
    ):
        for _ in range(4):
            consumer.reject(next_of(consumer))
        for _ in range(2):
            delivery = next_of(consumer)
            message = delivery.message
            channel.publish(Publish("", DEAD, message.properties, message.body))
            consumer.ack(through=delivery.tag)
    parked_messages = park(user, topology.broker, 2)
    batch = replayed(user, draft(user, parked_messages))
    assert batch.done == 2
    assert {message.properties.message_id for message in arrived(vhost, number=2)} == {"m0", "m1"}
    assert is_empty(vhost, "orders-retry")


def test_what_a_ladder_gave_up_begins_at_its_first_step_again(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    params = retry_ladder_params.Params("orders", (100 * MS, 200 * MS), "shop.order")
    provision.apply(None, create_topology(None, broker, retry_ladder.KIND, params))
    with publisher(address_of(vhost), "test") as channel:
        stated = build_properties({"n": 1}, message_id="m", delivery_mode=2)
        channel.publish(Publish("orders", "shop.order", stated, b"{}"))
    reject(vhost, 3)
    parked_messages = park(user, broker, 1, "orders-parking")
    batch = replayed(user, draft(user, parked_messages))
    assert batch.done == 1
    (back,) = arrived(vhost)
    came_back_clean(back, parked_messages[0])
    assert (back.exchange, back.routing_key) == ("orders", "shop.order")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_every_type_of_header_and_all_properties_come_back_as_they_were(
    vhost: Vhost, broker: Broker, user: User, kind: str
) -> None:
    shop(vhost, kind)
    full = build_properties(
        {"n": 1},
        content_type="text/plain",
        content_encoding="é",
        delivery_mode=2,
        priority=0,
        correlation_id="c",
        reply_to="r",
        message_id="full",
        timestamp=1_795_000_000,
        type="t",
        user_id=vhost.username,
        app_id="a",
    )
    every = read_properties(every_type())
    rejected(vhost, "every", properties=every, body=bytes(range(256)))
    rejected(vhost, "full", properties=full, body=b"\xff\xfe")
    parked_messages = park(user, broker, 2)
    assert parked_messages[1].message.properties.raw.find(vhost.username.encode()) > 0
    batch = replayed(user, draft(user, parked_messages))
    assert batch.done == 2
    first, second = arrived(vhost, number=2)
    for message, published in ((first, every), (second, full)):
        # A quorum queue counts each delivery anew.
        came = reported(stripped(message.properties, {}))
        for name in (REPLAY_HEADER, REPLAYS_HEADER):
            assert came["headers"].pop(name.encode())
        assert came == reported(stripped(published, {}))
    assert (first.body, second.body) == (bytes(range(256)), b"\xff\xfe")
    assert second.properties.user_id is None


def test_through_a_delay_it_is_handed_over_until_it_is_seen_to_arrive(
    vhost: Vhost, user: User
) -> None:
    topology = applied_pair(vhost, delay="2s")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD))
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", DEAD, build_properties({"n": 1}, message_id="m"), b"{}"))
    parked_messages = park(user, topology.broker, 1)
    with recorded(topology):
        batch = draft(
            user,
            parked_messages,
            TargetMode.DELAY,
            topology_id=topology.pk,
            delay=timedelta(seconds=2),
            key=WORK,
        )
        assert batch.routes.get().after_ms == 2000
        batch = replayed(user, batch)
        assert (batch.done, states(parked_messages)) == (1, [ParkedState.DELAYED])
        eventually(
            lambda: states(parked_messages) == [ParkedState.REPLAYED], "it is seen", seconds=SECONDS
        )
    (back,) = arrived(vhost)
    assert back.headers[REPLAY_HEADER] == batch.items.get().replay_id
    assert batch.items.get().outcome == Seen.DELIVERED
    assert adds_up(batch)


def test_a_rule_of_its_group_comes_before_the_way_that_it_came(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("elsewhere"))
    rejected(vhost, "m")
    parked_messages = park(user, broker, 1)
    targets.redirect_group(user, parked_messages[0].group, "", "elsewhere")
    batch = replayed(user, draft(user, parked_messages))
    assert batch.done == 1
    came_back_clean(arrived(vhost, "elsewhere")[0], parked_messages[0])
    assert is_empty(vhost, WORK)


@pytest.mark.both_databases
def test_what_was_edited_arrives_edited_and_the_parked_message_stays(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "m0", "m1")
    parked_messages = park(user, broker, 2)
    batch = draft(user, parked_messages)
    kept = parked_messages[0].message
    edit_message(
        user, batch.items.get(position=1), set_headers={"n": Typed("integer", "7")}, body=b"mended"
    )
    assert replayed(user, batch).done == 2
    first, second = arrived(vhost, number=2)
    assert (first.body, first.headers["n"]) == (b"mended", 7)
    assert b"\x01nI\x00\x00\x00\x07" in first.properties.raw
    assert first.properties.message_id == "m0"
    came_back_clean(second, parked_messages[1])
    assert ParkedMessage.objects.get(pk=parked_messages[0].pk).message == kept


def test_each_round_is_counted_linked_and_stopped_by_the_guard(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "m")
    for number in (1, 2, 3):
        parked_messages = park(user, broker, 1)
        assert parked_messages[0].message.headers.get(REPLAYS_HEADER, 0) == number - 1
        batch = replayed(user, draft(user, parked_messages))
        assert (batch.state, batch.done) == (BatchState.DONE, 1)
        reject(vhost, 1)
    parked_messages = park(user, broker, 1)
    batch.refresh_from_db()
    item = batch.items.get()
    assert (batch.died, item.outcome, item.died_as) == (1, Seen.DIED, parked_messages[0])
    guarded = draft(user, parked_messages)
    assert [route.ending for route in guarded.routes.all()] == ["guarded"]
    with pytest.raises(batch_state.BatchError, match="or more replays already"):
        batch_state.start(user, guarded, despite_verdict=False)
    assert replayed(user, guarded, despite_verdict=True).done == 1
    assert arrived(vhost)[0].headers[REPLAYS_HEADER] == 4
