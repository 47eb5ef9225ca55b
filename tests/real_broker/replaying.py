"""Messages that died on a real broker, and their replay: what the tests of it share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event, Thread
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.dead_letters.parked import park_queue, park_request
from delayboard.dead_letters.replay import batch_state, make_draft, outcome
from delayboard.dead_letters.replay.options import Options
from delayboard.management import run_in_process
from delayboard.models import (
    DeadLetterQueue,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayItem,
)
from delayboard.models.replay import ItemState, TargetMode
from tests.brokers import Vhost
from tests.builders import address_of, eventually
from tests.publishing import publisher
from tests.topology.builders import a_queue
from topology import snapshots, work
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Message, Properties, Publish
from topology.models import Broker, Topology, Work

DEAD, WORK = "dead", "orders"
SECONDS = 30.0
MS = timedelta(milliseconds=1)


def shop(vhost: Vhost, kind: str = "classic", **arguments: Any) -> None:
    """An exchange and a work queue `orders`, whose dead letters come into `dead`."""
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    queue = Queue(WORK, arguments=Arguments({"x-queue-type": kind, **dying, **arguments}))
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange(WORK))
        management.declare_queue(a_queue(DEAD, type=kind))
        management.declare_queue(queue)
        management.bind(Binding(WORK, WORK, WORK))


def send(
    vhost: Vhost, *ids: str, body: bytes = b"{}", properties: Properties | None = None
) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for name in ids:
            stated = properties or build_properties({"n": name}, message_id=name, delivery_mode=2)
            channel.publish(Publish(WORK, WORK, stated, body))


def rejected(vhost: Vhost, *ids: str, **sent: Any) -> None:
    send(vhost, *ids, **sent)
    reject(vhost, len(ids))


def reject(vhost: Vhost, number: int, *, requeue: bool = False) -> None:
    with Consumer(address_of(vhost), WORK) as consumer:
        for _ in range(number):
            consumer.reject(next_of(consumer), requeue=requeue)
        consumer.confirm_acks()


def next_of(consumer: Consumer) -> Delivery:
    (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=SECONDS, linger=0)
    return delivery


def confirmed(broker: Broker, queue: str = DEAD) -> None:
    DeadLetterQueue.objects.get_or_create(
        broker=broker,
        queue=queue,
        defaults={"is_confirmed": True, "decided_at": timezone.now()},
    )


def park(user: User, broker: Broker, number: int, queue: str = DEAD) -> list[ParkedMessage]:
    """All that is in the queue, as soon as so many are; the messages by their ids."""
    confirmed(broker, queue)
    eventually(lambda: depth(broker, queue) >= number, "all are dead", seconds=SECONDS)
    before = ParkedMessage.objects.count()
    parking = park_request.park_all(user, broker, queue, snapshots.poll(broker, 20).snapshot)
    while not parking.is_ended:
        worked_off(park_queue.KIND, park_queue.park)
        parking.refresh_from_db()
    assert ParkedMessage.objects.count() == before + number
    return list(ParkedMessage.objects.order_by("pk")[before:])


def depth(broker: Broker, queue: str) -> int:
    """As the queue says itself; the management API may still count what was there before."""
    return live_depths(broker.address, [queue]).get(queue, 0)


def worked_off(kind: str, do: Any) -> None:
    """Worker, without waiting for leases and pauses to run out."""
    long_ago = datetime.now(UTC) - timedelta(seconds=1)
    Work.objects.update(leased_until_at=long_ago, not_before_at=None)
    claimed = work.claim((kind,), "test worker")
    assert claimed is not None
    work.attempt(do, claimed, stop=Event())


def draft(
    user: User,
    parked_messages: list[ParkedMessage],
    mode: TargetMode = TargetMode.DEFAULT,
    **options: Any,
) -> ReplayBatch:
    ids = [parked_message.pk for parked_message in parked_messages]
    return make_draft.draft_messages(
        user, parked_messages[0].broker, ids, Options(mode=mode, **options)
    )


def replayed(user: User, batch: ReplayBatch, *, despite_verdict: bool = False) -> ReplayBatch:
    batch_state.start(user, batch, despite_verdict=despite_verdict)
    return at_rest(batch)


def at_rest(batch: ReplayBatch) -> ReplayBatch:
    return run_in_process.carry_out(batch, Event(), lambda batch: None)


def arrived(vhost: Vhost, queue: str = WORK, number: int = 1) -> list[Message]:
    """What is in the queue, taken out, as soon as so many are there."""
    messages: list[Message] = []
    with getter(address_of(vhost), queue) as source:

        def take() -> bool:
            while delivery := source.get():
                source.ack([delivery.tag])
                messages.append(delivery.message)
            return len(messages) >= number

        eventually(take, f"{number} are in {queue}", seconds=SECONDS)
    assert len(messages) == number
    return messages


def is_empty(vhost: Vhost, queue: str) -> bool:
    with getter(address_of(vhost), queue) as source:
        return source.get() is None


def states(parked_messages: list[ParkedMessage]) -> list[str]:
    return [
        parked_message.state
        for parked_message in ParkedMessage.objects.filter(pk__in=[x.pk for x in parked_messages])
    ]


def adds_up(batch: ReplayBatch) -> bool:
    """What the batch and the groups count is what there is."""
    own = batch.items.values_list("state", flat=True)
    counted = {str(state): 0 for state in ItemState}
    for state in own:
        counted[state] += 1
    groups = all(
        getattr(group, str(state)) == group.parked_messages.filter(state=state).count()
        for group in MessageGroup.objects.all()
        for state in ParkedState
    )
    return groups and all(
        counted.get(name, number) == number for name, number in batch.counts().items()
    )


def came_back_clean(message: Message, parked_message: ParkedMessage, *, replays: int = 1) -> None:
    """As it was published, but for the two headers of the replay."""
    assert not [
        name for name in message.headers if name.startswith(("x-death", "x-first", "x-last"))
    ]
    item = ReplayItem.objects.filter(parked_message=parked_message).latest("pk")
    assert message.headers[REPLAY_HEADER] == item.replay_id
    assert message.headers[REPLAYS_HEADER] == replays
    assert (message.body, message.content_id) == (
        parked_message.message.body,
        parked_message.content_id,
    )


@contextmanager
def recorded(topology: Topology) -> Iterator[None]:
    """The recorder, the index and the following of replays for the length of a block."""
    stop = Event()

    def run(background_task: Any) -> None:
        try:
            background_task(stop=stop, beat=lambda details: None)
        finally:
            connection.close()

    background_tasks = (partial(record, topology.pk), follow, outcome.follow_batches)
    threads = [Thread(target=run, args=(background_task,)) for background_task in background_tasks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
