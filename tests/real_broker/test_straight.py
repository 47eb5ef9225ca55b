"""A replay straight through: what lies in a queue goes, what is refused stays, all add up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from delayboard.dead_letters.replay.batch.lease import BatchLease
from delayboard.dead_letters.replay.send.send_batch import Sending
from delayboard.models import BatchState, ReplayBatch, TargetMode
from delayboard.models.replay import Source, parse_replay_id
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker
from tests.real_broker.refusing import SAID, refuse_beside
from topology import work
from topology.broker.amqp.consumer import Consumer, Delivery
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import pipeline
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import TAP_PREFIX, Arguments, Binding, Exchange, Queue
from topology.message import DEATH_HEADERS, REPLAY_HEADER, REPLAYS_HEADER, Publish
from topology.models import Work, WorkState

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT_OF_TWO = Arguments({"x-max-length": 2, "x-overflow": "reject-publish"})


def declared(vhost: Vhost, *queues: Queue) -> None:
    with Management(address_of(vhost)) as management:
        for queue in queues:
            management.declare_queue(queue)


def quorum(vhost: Vhost, **arguments: int) -> Arguments:
    """Of a quorum queue; one without a delivery limit, if none is said."""
    with Management(address_of(vhost)) as management:
        is_limited = str(management.overview()["rabbitmq_version"]) >= "4"
    stated = arguments or ({"x-delivery-limit": -1} if is_limited else {})
    return Arguments({"x-queue-type": "quorum", **stated})


def filled(vhost: Vhost, queue: str, number: int, **headers: Any) -> None:
    """Put messages with the bodies 0, 1, … into the queue."""
    properties = build_properties({"tenant": "t", **headers}, delivery_mode=2, message_id="m")
    with pipeline(address_of(vhost), "filling") as channel:
        for place in range(number):
            channel.publish(Publish("", queue, properties, b"%d" % place), place)
        while channel.in_flight:
            channel.answers(1.0)


def depth(vhost: Vhost, queue: str) -> int:
    return live_depths(address_of(vhost), [queue])[queue]


def drained(vhost: Vhost, queue: str, number: int) -> list[Delivery]:
    found: list[Delivery] = []
    with Consumer(address_of(vhost), queue, prefetch=number) as consumer:

        def is_all() -> bool:
            come = consumer.batch(limit=1000, limit_bytes=10**9, wait=0.1, linger=0)
            found.extend(come)
            return len(found) >= number

        eventually(is_all, f"{number} messages are in {queue}")
        consumer.finish(found[-1])
    return found


def a_batch(vhost: Vhost, queue: str, **stated: Any) -> ReplayBatch:
    now = datetime.now(UTC)
    values = {
        "source": Source.QUEUE,
        "mode": TargetMode.TYPED,
        "key": "target",
        "state": BatchState.RUNNING,
        "state_at": now,
        "description": "all",
        **stated,
    }
    batch = ReplayBatch(broker=make_broker(vhost), queue=queue, **values)
    batch.work = work.create("replay", 0, broker=batch.broker, user=None)
    batch.save()
    Work.objects.filter(pk=batch.work.pk).update(subject=batch.pk)
    return batch


def run(
    batch: ReplayBatch, stop: threading.Event | None = None, alive: Callable[[], None] | None = None
) -> None:
    claimed = work.claim(["replay"], "tests")
    assert claimed is not None
    row = ReplayBatch.objects.select_related("broker").get(pk=batch.pk)
    Sending(BatchLease(claimed, row), stop or threading.Event(), alive or (lambda: None)).run()
    batch.refresh_from_db()
    assert batch.work is not None
    batch.work.refresh_from_db()


@contextmanager
def running(batch: ReplayBatch) -> Iterator[None]:
    """It is sent by another thread, which ends within the block or right after it."""

    def act() -> None:
        try:
            run(batch)
        finally:
            connection.close()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert not thread.is_alive()
    batch.refresh_from_db()


def counts(batch: ReplayBatch) -> dict[str, int]:
    reported = batch.counts()
    assert sum(reported.values()) == batch.selected
    return {name: number for name, number in reported.items() if number}


def test_all_that_lay_in_the_queue_goes_stripped_and_named(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 3000, **{"x-first-death-queue": "orders"})
    batch = a_batch(vhost, "dead")
    run(batch)
    assert (batch.state, batch.state_why) == (BatchState.DONE, "")
    assert batch.work is not None
    assert batch.work.state == WorkState.DONE
    assert counts(batch) == {"done": 3000}
    assert depth(vhost, "dead") == 0
    come = drained(vhost, "target", 3000)
    assert [int(one.message.body) for one in come] == list(range(3000))
    parsed = [parse_replay_id(one.message.tag(REPLAY_HEADER)) for one in come]
    assert {one[0] for one in parsed if one} == {batch.uid}
    assert len({one[1] for one in parsed if one}) == 3000
    headers = come[0].message.headers
    assert (headers["tenant"], headers[REPLAYS_HEADER]) == ("t", 1)
    assert not DEATH_HEADERS & set(headers)


def test_what_a_queue_refuses_stays_and_is_counted_once(vhost: Vhost) -> None:
    full = Queue("target", arguments=LIMIT_OF_TWO)
    declared(vhost, Queue("dead"), full)
    filled(vhost, "dead", 40)
    batch = a_batch(vhost, "dead")
    run(batch)
    assert batch.state == BatchState.DONE
    found = counts(batch)
    assert found["done"] >= 2
    assert found["failed"] == depth(vhost, "dead") == 40 - found["done"]
    assert "stay in “dead”" in batch.state_why
    assert "full" in batch.state_why


def test_what_another_queue_refused_stays_and_is_counted_as_possibly_duplicated(
    vhost: Vhost,
) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 3)
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("shop"))
        management.bind(Binding("shop", "target", "target"))
        refuse_beside(management, "shop", "target")
    batch = a_batch(vhost, "dead", exchange="shop")
    run(batch)
    assert (batch.state, counts(batch)) == (BatchState.DONE, {"unknown": 3})
    assert batch.doubled == depth(vhost, "dead") == depth(vhost, "target") == 3
    assert "3 messages stay in “dead”. 3 of them may have arrived as well." in batch.state_why
    assert f"{SAID}“target”." in batch.state_why


@every_generation
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_no_queue_takes_stays_however_many_these_are(vhost: Vhost, kind: str) -> None:
    arguments = quorum(vhost) if kind == "quorum" else Arguments({})
    declared(vhost, Queue("dead", arguments=arguments))
    filled(vhost, "dead", 5000)
    batch = a_batch(vhost, "dead")
    run(batch)
    assert counts(batch) == {"returned": 5000}
    eventually(lambda: depth(vhost, "dead") == 5000, "all are back")


def test_what_goes_back_into_its_own_queue_goes_once(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"))
    filled(vhost, "dead", 50)
    batch = a_batch(vhost, "dead", key="dead")
    run(batch)
    assert counts(batch) == {"done": 50}
    come = drained(vhost, "dead", 50)
    assert {one.message.headers[REPLAYS_HEADER] for one in come} == {1}


def test_each_goes_to_where_it_came_from_and_what_does_not_tell_stays(vhost: Vhost) -> None:
    dying = Arguments({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    declared(vhost, Queue("dead"), Queue("orders", arguments=dying))
    filled(vhost, "orders", 3)
    with Consumer(address_of(vhost), "orders") as consumer:
        for one in consumer.batch(limit=3, limit_bytes=10**6, wait=60, linger=5):
            consumer.reject(one)
        eventually(lambda: depth(vhost, "dead") == 3, "all died")
    filled(vhost, "dead", 2)
    batch = a_batch(vhost, "dead", mode=TargetMode.DEFAULT, key="")
    run(batch)
    assert counts(batch) == {"done": 3, "failed": 2}
    assert (depth(vhost, "orders"), depth(vhost, "dead")) == (3, 2)


def test_one_that_was_replayed_too_often_stays(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 1, **{REPLAYS_HEADER: 3})
    batch = a_batch(vhost, "dead", most_replays=3)
    run(batch)
    assert counts(batch) == {"failed": 1}
    assert "replayed 3 times already" in batch.state_why


def test_an_absent_exchange_is_told_of_and_keeps_all(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"))
    filled(vhost, "dead", 20)
    batch = a_batch(vhost, "dead", exchange="none")
    run(batch)
    assert counts(batch) == {"failed": 20}
    assert depth(vhost, "dead") == 20
    assert "exchange “none” does not exist" in batch.state_why


def test_it_pauses_and_goes_on(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 300)
    batch = a_batch(vhost, "dead", rate=20.0)
    with running(batch):
        eventually(lambda: depth(vhost, "target") > 0, "it is at work")
        ReplayBatch.objects.filter(pk=batch.pk).update(pause_requested=True)
        eventually(lambda: state(batch) == BatchState.PAUSED, "it is paused")
    found = counts(batch)
    assert 0 < found["done"] < 300
    assert found["pending"] == depth(vhost, "dead")
    assert batch.doubled == 0
    ReplayBatch.objects.filter(pk=batch.pk).update(state=BatchState.RUNNING, rate=None)
    Work.objects.update(not_before_at=None)
    run(batch)
    assert counts(batch) == {"done": 300}
    assert len({one.message.tag(REPLAY_HEADER) for one in drained(vhost, "target", 300)}) == 300


def test_it_is_cancelled_with_the_rest_left_where_it_was(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 300)
    batch = a_batch(vhost, "dead", rate=20.0)
    assert batch.work is not None
    with running(batch):
        eventually(lambda: depth(vhost, "target") > 0, "it is at work")
        work.cancel(batch.work)
        eventually(lambda: state(batch) == BatchState.CANCELLED, "it is cancelled")
    found = counts(batch)
    assert found["done"] + found["cancelled"] == 300
    assert found["cancelled"] == depth(vhost, "dead")


def test_a_stop_gives_the_work_back(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 30)
    batch = a_batch(vhost, "dead", rate=10.0)
    stop = threading.Event()
    run(batch, stop, alive=stop.set)
    assert batch.state == BatchState.RUNNING
    assert batch.work is not None
    assert batch.work.state == WorkState.WAITING
    found = counts(batch)
    assert found["pending"] == depth(vhost, "dead") == 30 - depth(vhost, "target")


def test_after_a_run_that_broke_off_it_says_how_many_may_be_there_twice(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 10)
    batch = a_batch(vhost, "dead", selected=12, done=2, claimed_to=50_000)
    run(batch)
    assert counts(batch) == {"done": 12}
    assert batch.doubled == 12
    assert "Up to 12 may be duplicated" in batch.state_why
    named = [
        parse_replay_id(one.message.tag(REPLAY_HEADER)) for one in drained(vhost, "target", 10)
    ]
    assert min(one[1] for one in named if one) > 50_000


def test_what_left_the_queue_otherwise_is_not_waited_for(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 3)
    batch = a_batch(vhost, "dead", selected=5, done=1, claimed_to=1, prepared_to=1)
    run(batch)
    assert batch.state == BatchState.DONE
    assert counts(batch) == {"done": 4, "cancelled": 1}
    assert "1 message is not in “dead” any more" in batch.state_why


def test_at_a_tapped_exchange_what_only_the_tap_takes_stays(vhost: Vhost) -> None:
    tap = f"{TAP_PREFIX}x"
    declared(vhost, Queue("dead"), Queue("target"), Queue(tap))
    with Management(address_of(vhost)) as management:
        management.bind(Binding("amq.direct", tap, "key"))
    filled(vhost, "dead", 300)
    batch = a_batch(vhost, "dead", exchange="amq.direct", key="key")
    run(batch)
    assert counts(batch) == {"returned": 300}
    assert depth(vhost, "dead") == 300
    with Management(address_of(vhost)) as management:
        management.bind(Binding("amq.direct", "target", "key"))
    ReplayBatch.objects.filter(pk=batch.pk).update(state=BatchState.RUNNING)
    Work.objects.update(state=WorkState.WAITING)
    run(batch)
    assert counts(batch) == {"done": 300}


def state(batch: ReplayBatch) -> str:
    return ReplayBatch.objects.values_list("state", flat=True).get(pk=batch.pk)


def test_a_target_that_is_none_any_more_pauses_it(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"))
    filled(vhost, "dead", 1)
    batch = a_batch(vhost, "dead", mode=TargetMode.DELAY, delay=timedelta(seconds=1))
    run(batch)
    assert (batch.state, batch.state_why) == (
        BatchState.PAUSED,
        "There is no such topology on this broker.",
    )
    assert counts(batch) == {"pending": 1}
