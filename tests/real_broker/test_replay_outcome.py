"""Outcomes of replays on a real broker: delivered (observed), dead-lettered again, paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.dead_letters.parked.park_queue import park_automatically
from delayboard.dead_letters.parked.store_batch import SpaceCheck
from delayboard.dead_letters.replay import outcome
from delayboard.dead_letters.replay.edit_headers import Typed
from delayboard.dead_letters.replay.edit_message import edit_message
from delayboard.models import (
    BackgroundTask,
    DeadLetterQueue,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
)
from delayboard.models.background_task import task_key
from delayboard.models.replay import BatchState, ReplayOutcome, TargetMode
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.replaying import (
    DEAD,
    SECONDS,
    WORK,
    adds_up,
    arrived,
    draft,
    park,
    reject,
    rejected,
    replayed,
    shop,
)
from topology import snapshots
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, edit_properties
from topology.definitions import Queue
from topology.message import REPLAY_HEADER, Publish
from topology.models import Broker, Role

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]
QUIET: Any = {"beat": lambda details: None}


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    return make_broker(vhost)


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ann", Role.OPERATOR)


@contextmanager
def at_work(*background_tasks: Callable[..., None]) -> Iterator[None]:
    """These tasks of the worker for the length of the block."""
    stop = Event()

    def run(background_task: Callable[..., None]) -> None:
        try:
            background_task(stop=stop, **QUIET)
        finally:
            connection.close()

    threads = [Thread(target=run, args=(background_task,)) for background_task in background_tasks]
    with ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join, SECONDS)
        ending.callback(stop.set)
        yield
    assert not any(thread.is_alive() for thread in threads)


def parker(broker: Broker) -> Callable[..., None]:
    """The task that watches the dead-letter queue, said to be at work."""
    row = DeadLetterQueue.objects.get(broker=broker, queue=DEAD)
    row.parks_automatically = True
    row.save()
    BackgroundTask.objects.create(
        key=task_key("park", row.pk), name="Parker", beat_at=timezone.now()
    )
    return partial(park_automatically, row.pk, space=SpaceCheck())


def fresh(batch: ReplayBatch) -> ReplayBatch:
    batch.refresh_from_db()
    return batch


@contextmanager
def rejecting(vhost: Vhost) -> Iterator[None]:
    """A consumer of the work queue that takes nothing."""
    stop = Event()

    def run() -> None:
        with Consumer(address_of(vhost), WORK) as consumer:
            while not stop.is_set():
                for delivery in consumer.batch(limit=10, limit_bytes=10**6, wait=0.1, linger=0):
                    consumer.reject(delivery, requeue=False)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(SECONDS)


def test_a_message_that_dies_again_into_a_watched_queue_is_told(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "a", "b")
    parked_messages = park(user, broker, 2)
    batch = replayed(user, draft(user, parked_messages))
    with at_work(parker(broker)):
        reject(vhost, 1)
        eventually(lambda: fresh(batch).died, "one died again", seconds=SECONDS)
    arrived(vhost)
    again = ParkedMessage.objects.latest("pk")
    dead, _ = batch.items.all()
    assert (batch.died, dead.outcome, dead.died_as) == (1, ReplayOutcome.DIED, again)
    assert (again.message_id, again.state) == (dead.message_id, ParkedState.PARKED)
    assert adds_up(batch)


def test_a_canary_whose_messages_die_again_stops_the_batch(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, *(f"m{number}" for number in range(6)))
    parked_messages = park(user, broker, 6)
    batch = draft(user, parked_messages, canary=2, canary_seconds=60, canary_goes_on=True)
    with at_work(parker(broker)), rejecting(vhost):
        batch = replayed(user, batch)
    assert batch.state == BatchState.PAUSED
    assert "of the first 2 were dead-lettered again" in batch.state_why
    assert (batch.done, batch.pending) == (2, 4)
    assert adds_up(batch)


def test_a_canary_of_which_none_dies_goes_on_by_itself(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, *(f"m{number}" for number in range(4)))
    parked_messages = park(user, broker, 4)
    batch = draft(user, parked_messages, canary=1, canary_seconds=1, canary_goes_on=True)
    with at_work(parker(broker)):
        batch = replayed(user, batch)
    assert (batch.state, batch.done) == (BatchState.DONE, 4)
    arrived(vhost, number=4)


def test_a_batch_whose_messages_come_back_dead_stops_itself(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, *(f"m{number}" for number in range(30)))
    parked_messages = park(user, broker, 30)
    batch = draft(user, parked_messages, stop_after=3, rate=5.0)
    with at_work(parker(broker)), rejecting(vhost):
        batch = replayed(user, batch)
    assert batch.state == BatchState.PAUSED
    assert "dead-lettered again" in batch.state_why
    assert 0 < batch.pending < 30
    assert adds_up(batch)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_what_was_sent_counts_when_it_dies_again(
    vhost: Vhost, broker: Broker, user: User, kind: str
) -> None:
    shop(vhost, kind)
    table = {"deep": [{"a": True}, b"\xff", 1.5], "n": 2**40}
    for name in ("", "b"):
        stated = build_properties(table, message_id=name, priority=1, expiration="90000")
        rejected(vhost, name, properties=stated, body=b"plain")
    parked_messages = park(user, broker, 2)
    batch = draft(user, parked_messages)
    edit_message(
        user, batch.items.get(position=2), set_headers={"more": Typed("text", "1")}, body=b"edited"
    )
    batch = replayed(user, batch)
    came = arrived(vhost, number=2)
    for message in came:
        derived = Publish("", DEAD, message.properties, b"derived")
        other = edit_properties(
            message.properties, set_headers={REPLAY_HEADER: batch.uid.hex + "-2"}
        )
        with publisher(address_of(vhost), "test") as channel:
            channel.publish(derived)
            channel.publish(Publish("", DEAD, other, b"plain"))
            channel.publish(Publish(WORK, WORK, message.properties, message.body))
    park(user, broker, 4)
    assert fresh(batch).died == 0
    reject(vhost, 2)
    park(user, broker, 2)
    assert fresh(batch).died == 2
    bodies = batch.items.values_list("died_as__body__data", flat=True)
    assert [bytes(body) for body in bodies] == [b"plain", b"edited"]


def test_what_died_again_into_a_queue_that_nobody_parks_is_found_by_a_look(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "a")
    batch = replayed(user, draft(user, park(user, broker, 1)))
    reject(vhost, 1)
    eventually(lambda: _is_known_dead(broker), "the broker counts it", seconds=SECONDS)
    outcome_of = partial(_looked, batch)
    eventually(outcome_of, "it is seen in the queue", seconds=SECONDS)
    item = batch.items.get()
    assert (fresh(batch).died, item.outcome, item.died_as) == (1, ReplayOutcome.DIED, None)
    DeadLetterQueue.objects.all().delete()
    (parked_message,) = park(user, broker, 1)
    item.refresh_from_db()
    assert (fresh(batch).died, item.died_as) == (1, parked_message)


def _is_known_dead(broker: Broker) -> bool:
    snapshot = snapshots.poll(broker, 20).snapshot
    return snapshot is not None and snapshot.numbers[DEAD].messages == 1


def _looked(batch: ReplayBatch) -> bool:
    outcome.follow_batch(batch, outcome.Follower(), timezone.now())
    return bool(fresh(batch).died)


def test_what_is_published_past_every_delay_is_seen_to_arrive_by_the_tap(
    vhost: Vhost, user: User
) -> None:
    topology = applied_pair(vhost, delay="100ms")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD))
    with publisher(address_of(vhost), "test") as channel:
        stated = build_properties({}, message_id="m", delivery_mode=2)
        channel.publish(Publish("", DEAD, stated, b"{}"))
    parked_messages = park(user, topology.broker, 1)
    typed = {"exchange": topology.taps[-1].exchange, "key": WORK}
    with at_work(partial(record, topology.pk), follow, outcome.follow_batches):
        batch = replayed(user, draft(user, parked_messages, TargetMode.TYPED, **typed))
        eventually(lambda: fresh(batch).delivered, "it is seen to arrive", seconds=SECONDS)
    assert batch.items.get().outcome == ReplayOutcome.DELIVERED
    assert "no tap" not in outcome.explain_unobserved(batch)
    assert adds_up(batch)


def test_without_a_tap_it_is_said_that_nobody_sees_them(
    vhost: Vhost, broker: Broker, user: User
) -> None:
    shop(vhost)
    rejected(vhost, "a")
    batch = replayed(user, draft(user, park(user, broker, 1)))
    # Until RabbitMQ has counted the queue, it is not known whether a peek costs nothing.
    no_tap = "Arrivals are not observed: no tap of a topology is on the route."
    eventually(lambda: outcome.explain_unobserved(batch) == no_tap, "it is counted")
    DeadLetterQueue.objects.all().delete()
    said = outcome.explain_unobserved(batch)
    assert "Delayboard does not observe dead-lettering into “dead”" in said
