"""Killed parkers and brokers, a full database: nothing is lost, what is double is told."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.utils import timezone
from pytest_django import Settings

from analytics import facts
from analytics.models import Fact
from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.batch_state import KIND_PREPARE
from delayboard.dead_letters.replay.options import Options
from delayboard.demo.node import PrivateNode
from delayboard.models import (
    BackgroundTask,
    BatchState,
    DeadLetterQueue,
    MessageGroup,
    ParkedMessage,
    TargetMode,
)
from delayboard.models.background_task import task_key
from delayboard.worker.supervise import keep_one_running
from delayboard.worker.tasks import parker_of
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker, running
from tests.faults.forking import forked
from tests.faults.nodes import KINDS, vhost_of
from topology import work
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import CONFIRMED, pipeline
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Publish
from topology.models import Broker

pytestmark = pytest.mark.django_db(transaction=True)
DEAD = "dead"
PATIENCE = 90.0
# A second's work of a parker, and more.
BACKLOG = 4000
# More than a parker keeps until its broker is killed.
MANY = 6000
# Enough for the task's row and the look for room, not for the messages.
ROOM_PAGES = 100
# The limit of SQLite without one.
MOST_PAGES = 4_294_967_294
TO_ORDERS = Options(mode=TargetMode.TYPED, key="orders")


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def watched(vhost: Vhost, kind: str) -> DeadLetterQueue:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue(DEAD, arguments=Arguments({"x-queue-type": kind})))
    return confirmed(make_broker(vhost))


def confirmed(broker: Broker) -> DeadLetterQueue:
    now = timezone.now()
    return DeadLetterQueue.objects.create(
        broker=broker,
        queue=DEAD,
        is_confirmed=True,
        decided_at=now,
        parks_automatically=True,
        watched_at=now,
    )


def send(vhost: Vhost, number: int, *, size: int = 1, first: int = 0) -> None:
    """Numbered messages, some with equal bodies if they are small."""
    with pipeline(address_of(vhost), "test") as channel:
        for count in range(first, first + number):
            stated = build_properties({"n": count}, message_id=f"m{count}", delivery_mode=2)
            body = b"%04d" % (count if size > 1 else count % 100) * size
            channel.publish(Publish("", DEAD, stated, body), count)
        while channel.in_flight:
            assert {answer for _, answer in channel.answers(1.0)} <= {CONFIRMED}


def parked_messages() -> int:
    return ParkedMessage.objects.count()


def has(number: int) -> bool:
    return parked_messages() >= number


def is_empty(vhost: Vhost) -> bool:
    """Nothing ready, and nothing on its way."""
    try:
        with Management(address_of(vhost)) as management:
            reported = management.queue(DEAD)
    except BrokerError:
        return False
    return reported.get("messages") == 0 and not live_depths(address_of(vhost), [DEAD])[DEAD]


def distinct() -> int:
    return ParkedMessage.objects.values("message_id").distinct().count()


def all_is_there_and_adds_up(messages: int) -> None:
    """Each at least once, what is more is marked, and counters and facts say the same."""
    kept = Counter(ParkedMessage.objects.values_list("message_id", flat=True))
    assert set(kept) == {f"m{number}" for number in range(messages)}
    marked = ParkedMessage.objects.exclude(repeat_of=None).select_related("repeat_of")
    assert kept.total() - messages == marked.count()
    assert all(m.repeat_of and m.repeat_of.message_id == m.message_id for m in marked)
    assert len({m.repeat_of_id for m in marked}) == marked.count()
    groups = MessageGroup.objects.all()
    assert sum(g.parked for g in groups) == sum(g.total for g in groups) == kept.total()


@pytest.mark.both_databases
@every_generation
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.long)])
def test_kills_at_any_moment_lose_nothing_and_mark_what_is_double(
    vhost: Vhost, settings: Settings, kind: str, kills: int
) -> None:
    """Before each kill what is missing is sent, so that the parker is never through."""
    row = watched(vhost, kind)
    messages = 0
    for count in range(kills):
        missing = BACKLOG - (messages - distinct())
        send(vhost, missing, first=messages)
        messages += missing
        goal = parked_messages() + random.randint(1, BACKLOG // 10)
        with forked("worker", "--only", task_key("park", row.pk)):
            eventually(partial(has, goal), f"it is at work, time {count}", seconds=PATIENCE)
            time.sleep(random.uniform(0, 0.05))
        assert distinct() < messages
    with forked("worker", "--only", task_key("park", row.pk)):
        # The management API's numbers may be of the moment before the last messages were sent.
        eventually(lambda: distinct() == messages, "all are kept", seconds=PATIENCE)
        eventually(lambda: is_empty(vhost), "the queue is empty", seconds=PATIENCE)
    all_is_there_and_adds_up(messages)
    repeats = ParkedMessage.objects.exclude(repeat_of=None).count()
    assert repeats <= kills * settings.MESSAGES_IN_FLIGHT
    a_replay_leaves_out(repeats, row.broker)
    assert len(facts.oldest(Fact.objects.count())) == parked_messages()


def a_replay_leaves_out(repeats: int, broker: Broker) -> None:
    """The dry run of all that is parked counts the possible repeats and sends none of them."""
    batch = make_draft.draft_query(None, broker, "state:parked", TO_ORDERS)
    claimed = work.claim([KIND_PREPARE], "test")
    if claimed is not None:
        work.attempt(make_draft.prepare_draft, claimed, stop=Event())
    batch.refresh_from_db()
    assert batch.state == BatchState.DRAFT, batch.state_why
    assert (batch.selected, batch.repeats, batch.excluded) == (parked_messages(), repeats, repeats)
    assert batch.pending == distinct()


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_dies_in_the_middle_loses_nothing(node: PrivateNode, kind: str) -> None:
    vhost = vhost_of(node, kind)
    row = confirmed(make_broker(vhost))
    send(vhost, MANY)
    with forked("worker", "--only", task_key("park", row.pk)):
        eventually(partial(has, 200), "it is at work", seconds=PATIENCE)
        node.kill()
        assert distinct() < MANY
        node.start()
        try:
            eventually(lambda: distinct() == MANY, "all are kept", seconds=PATIENCE)
            eventually(lambda: is_empty(vhost), "the queue is empty", seconds=PATIENCE)
        except AssertionError as error:
            background_tasks = list(BackgroundTask.objects.values_list("last_error", flat=True))
            raise AssertionError(f"{error}: {distinct()} are, {background_tasks=}") from error
    all_is_there_and_adds_up(MANY)


@contextmanager
def full_database() -> Iterator[Event]:
    """SQLite connections of other threads have little room, as long as the event is set."""
    full = Event()
    full.set()
    own = get_ident()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
        pages = cursor.execute("PRAGMA page_count").fetchone()[0] + ROOM_PAGES

    def resize(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        most = pages if full.is_set() else MOST_PAGES
        context["connection"].connection.execute(f"PRAGMA max_page_count={most}")
        return execute(sql, params, many, context)

    def limit(connection: Any, **more: Any) -> None:
        if get_ident() != own and resize not in connection.execute_wrappers:
            connection.execute_wrappers.append(resize)

    connection_created.connect(limit)
    try:
        yield full
    finally:
        connection_created.disconnect(limit)


@pytest.mark.sqlite
@every_generation
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_database_stops_the_parking_is_said_and_is_got_over(vhost: Vhost, kind: str) -> None:
    row = watched(vhost, kind)
    send(vhost, 500, size=10_000)
    background_task = BackgroundTask.objects.filter(key=task_key("park", row.pk))
    with full_database() as full, running(partial(keep_one_running, parker_of(row))):
        eventually(
            lambda: any("cannot store messages" in d.last_error for d in background_task.all()),
            "the background task says it",
            seconds=PATIENCE,
        )
        assert parked_messages() < 500
        full.clear()
        eventually(lambda: is_empty(vhost), "it goes on by itself", seconds=PATIENCE)
        eventually(
            lambda: not any(d.last_error for d in background_task.all()),
            "all is well",
            seconds=PATIENCE,
        )
    all_is_there_and_adds_up(500)
