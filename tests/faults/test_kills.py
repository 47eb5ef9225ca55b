"""Killing the worker at any moment leaves nothing that its next start does not put right."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from django.utils import timezone
from pytest_django import Settings

from analytics.events import MessageEvent
from analytics.log import read_day
from analytics.models import DueCount, Minute, ScheduledMessage
from analytics.recorder.record import PREFETCH
from delayboard.dead_letters import browse
from delayboard.dead_letters.replay import batch as batches
from delayboard.models import ItemState, ReplayBatch
from tests.brokers import SUITES, Vhost
from tests.builders import address_of, applied_pair, eventually, make_user
from tests.faults.processes import environment, kill, started
from topology import latest
from topology.broker.consumer import Consumer, getter
from topology.broker.management import Management
from topology.broker.properties import build_properties
from topology.broker.publisher import publisher
from topology.definitions import Queue
from topology.message import Publish
from topology.models import Role, Topology, Work

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES = 50


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def died_in_orders(topology: Topology, vhost: Vhost) -> ReplayBatch:
    """A started batch of messages that were rejected in `orders` and lie in `dead`."""
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(Queue("dead"))
    with publisher(address, "test") as channel, Consumer(address, "orders") as consumer:
        for number in range(MESSAGES):
            properties = build_properties(message_id=f"m{number}", delivery_mode=2)
            channel.publish(Publish("orders", "orders", properties, b"%d" % number))
        waiting = MESSAGES
        while waiting:
            for delivery in consumer.batch(limit=MESSAGES, limit_bytes=10**6, wait=5):
                message = delivery.message
                if message.headers.get("x-death"):
                    channel.publish(Publish("", "dead", message.properties, message.body))
                    consumer.ack_through(delivery)
                    waiting -= 1
                else:
                    consumer.reject(delivery)
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    queue = snapshot.definitions.queue("dead")
    assert queue is not None
    seen = browse.look(topology.broker, queue, snapshot)
    user = make_user("operator", Role.OPERATOR)
    batch = batches.freeze(user, topology.broker, "dead", seen.letters, snapshot)
    batches.start(user, batch, despite_verdict=False)
    return batch


def drained(vhost: Vhost, queue: str) -> Counter[str]:
    ids: Counter[str] = Counter()
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            source.ack(delivery)
            ids[delivery.message.properties.message_id or ""] += 1
    return ids


def has_done(batch: ReplayBatch, number: int) -> bool:
    return batch.counts()["done"] >= min(number, MESSAGES)


def is_ended(batch: ReplayBatch) -> bool:
    batch.refresh_from_db()
    assert batch.work is not None
    batch.work.refresh_from_db()
    return batch.is_ended


@pytest.mark.parametrize(
    ("kills", "apart"),
    [(3, 10), pytest.param(20, 2, marks=pytest.mark.long)],
)
def test_a_replay_survives_kills_of_the_worker_and_marks_what_may_be_double(
    vhost: Vhost, kills: int, apart: int
) -> None:
    batch = died_in_orders(applied_pair(vhost, delay="100ms"), vhost)
    for _ in range(kills):
        with started("worker", variables=environment()) as worker:
            goal = batch.counts()["done"] + random.randint(1, apart)
            eventually(partial(has_done, batch, goal), "it makes progress")
            kill(worker)
        # The next worker would wait for the dead one's lease; the test does not.
        Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    with started("worker", variables=environment()):
        eventually(lambda: is_ended(batch), "the replay ends")
    counts = batch.counts()
    assert sum(counts.values()) == MESSAGES
    assert counts["done"] == MESSAGES
    back = drained(vhost, "orders")
    assert set(back) == {f"m{number}" for number in range(MESSAGES)}
    assert drained(vhost, "dead") == Counter()
    marked = set(batch.items.filter(may_be_duplicated=True).values_list("message_id", flat=True))
    assert {name for name, count in back.items() if count > 1} <= marked
    assert len(marked) <= kills
    assert not batch.items.exclude(state=ItemState.DONE).exists()


@pytest.mark.parametrize("broker_node", SUITES, indirect=True, scope="session")
@pytest.mark.parametrize(
    ("kills", "messages"),
    [(3, 600), pytest.param(20, 5000, marks=pytest.mark.long)],
)
def test_a_recorder_that_is_killed_loses_no_copy_and_of_a_stream_repeats_none(
    vhost: Vhost, settings: Settings, kills: int, messages: int
) -> None:
    topology = applied_pair(vhost, delay="1h")
    sent = [f"m{number}" for number in range(messages)]
    shares = [sent[number :: kills + 1] for number in range(kills + 1)]
    for share in shares[:-1]:
        known = len(recorded(settings, topology))
        with started("worker", "--only", "recorder", variables=environment()) as worker:
            publisher_of_share = Thread(target=delay_all, args=(vhost, share))
            publisher_of_share.start()
            goal = known + random.randint(1, len(share) * 3 // 4)
            eventually(partial(has_recorded, settings, topology, goal), "the recorder is at work")
            kill(worker)
            publisher_of_share.join()
    delay_all(vhost, shares[-1])
    with started("worker", "--only", "recorder", variables=environment()):
        eventually(partial(has_recorded, settings, topology, messages), "every copy is in the log")
        eventually(
            lambda: ScheduledMessage.objects.filter(topology=topology).count() == messages,
            "every copy is in the index",
        )
    copies = recorded(settings, topology)
    unmarked = Counter(event.message_id for event in logged(settings) if not event.redelivered)
    assert set(copies) == set(sent)
    assert set(unmarked.values()) == {1}
    assert copies.total() - messages <= kills * PREFETCH
    if topology.tap_type == "stream":
        assert set(copies.values()) == {1}
    assert sum(minute.entered for minute in Minute.objects.all()) == messages
    rows = ScheduledMessage.objects.filter(topology=topology, left_at=None)
    assert Counter(rows.values_list("message_id", flat=True)) == dict.fromkeys(sent, 1)
    counted = DueCount.objects.filter(topology=topology, width=3600)
    assert sum(count.waiting for count in counted) == messages


def delay_all(vhost: Vhost, names: list[str]) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for name in names:
            properties = build_properties(message_id=name, delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", properties, b"{}"))


def recorded(settings: Settings, topology: Topology) -> Counter[str]:
    return Counter(e.message_id for e in logged(settings) if e.topology == topology.slug)


def has_recorded(settings: Settings, topology: Topology, number: int) -> bool:
    return len(recorded(settings, topology)) >= number


def logged(settings: Settings) -> list[MessageEvent]:
    if not settings.EVENT_LOG.exists():
        return []
    today = timezone.now().date()
    days = (today - timedelta(days=1), today)
    return [event for day in days for event in read_day(settings.EVENT_LOG, day)]
