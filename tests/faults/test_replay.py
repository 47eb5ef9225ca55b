"""Killed replayers and brokers, a broken target, a full database: no message is lost."""

from __future__ import annotations

import random
import sqlite3
import time
from functools import partial
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import Settings

from analytics.facts import oldest
from delayboard.dead_letters.replay import batch_state
from delayboard.demo.node import PrivateNode
from delayboard.models import (
    BackgroundTask,
    BatchState,
    ItemState,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
)
from delayboard.models.background_task import REPLAYS
from tests.brokers import Vhost, every_generation, newest_generation
from tests.builders import address_of, eventually
from tests.delayboard.builders import a_route
from tests.faults.forking import forked
from tests.faults.freezing import frozen
from tests.faults.nodes import KINDS, vhost_of
from tests.faults.replays import (
    TARGET,
    a_replay,
    adds_up,
    arrived,
    declare,
    depth_at_rest,
    forget_leases,
    fresh,
    has,
    has_done,
    is_at,
    lost_nothing,
    parked_messages,
    replaying,
    unsettled,
)
from tests.faults.test_parking import full_database
from topology.broker.management.client import Management
from topology.definitions import Exchange
from topology.models import Work

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 90.0
of_each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.mark.both_databases
@every_generation
@of_each_kind
@pytest.mark.parametrize(
    ("kills", "messages"), [(5, 3000), pytest.param(50, 50_000, marks=pytest.mark.long)]
)
def test_kills_at_any_moment_lose_nothing_and_mark_what_may_be_double(
    vhost: Vhost, settings: Settings, kind: str, kills: int, messages: int
) -> None:
    """Most at a rate, so that it is never through before the last kill, and each fifth with as
    many on their way as there can be.
    """
    declare(vhost, kind)
    batch = a_replay(vhost, messages)
    unconfirmed = 0
    for count in range(kills):
        ReplayBatch.objects.filter(pk=batch.pk).update(rate=None if count % 5 == 4 else 250.0)
        goal = depth_at_rest(vhost) + random.randint(1, 100)
        with forked("worker", "--only", REPLAYS):
            eventually(partial(is_at, vhost, goal), f"it publishes, time {count}", seconds=PATIENCE)
            time.sleep(random.uniform(0, 0.05))
        assert fresh(batch).pending
        assert unsettled(batch) <= settings.MESSAGES_IN_FLIGHT
        unconfirmed += unsettled(batch)
        forget_leases()
    ReplayBatch.objects.filter(pk=batch.pk).update(rate=None)
    with forked("worker", "--only", REPLAYS):
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    names = arrived(vhost)
    lost_nothing(batch, names)
    # One that was on its way at several kills may be there as often.
    assert sum(number > 1 for number in names.values()) <= fresh(batch).doubled <= unconfirmed
    assert names.total() - len(names) <= unconfirmed
    assert fresh(batch).done + fresh(batch).failed == messages


@of_each_kind
def test_a_broker_that_dies_and_one_that_freezes_in_the_middle_lose_nothing(
    node: PrivateNode, kind: str
) -> None:
    vhost = vhost_of(node, kind)
    batch = a_replay(vhost, 1800, rate=300)
    with replaying():
        eventually(lambda: has_done(batch, 300), "it is at work", seconds=PATIENCE)
        node.kill()
        node.start()
        goal = fresh(batch).done + 300
        assert goal < 1800
        eventually(lambda: has_done(batch, goal), "it goes on", seconds=PATIENCE)
        with frozen(node):
            batch_state.pause(None, batch)
        eventually(lambda: has(batch, BatchState.PAUSED), "it is paused", seconds=PATIENCE)
        adds_up(batch)
        batch_state.resume(None, batch)
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    lost_nothing(batch, arrived(vhost))
    assert fresh(batch).done == 1800


@every_generation
@of_each_kind
def test_a_target_that_is_full_refuses_and_the_rest_stays_parked(vhost: Vhost, kind: str) -> None:
    declare(vhost, kind, max_length=50, overflow="reject-publish")
    batch = a_replay(vhost, 2000)
    with replaying():
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    row = fresh(batch)
    assert row.failed + row.unknown > 0
    assert row.done + row.failed + row.unknown == 2000
    lost_nothing(batch, names := arrived(vhost))
    assert names.total() == row.done
    # The queue is full at every look after a nack.
    assert row.unknown == 0
    refused = batch.items.filter(state=ItemState.FAILED).first()
    assert refused is not None
    assert "is full and rejected the message" in refused.error


@every_generation
@of_each_kind
def test_a_target_that_vanishes_gives_the_rest_back(vhost: Vhost, kind: str) -> None:
    declare(vhost, kind)
    batch = a_replay(vhost, 1000, rate=400)
    with replaying():
        eventually(lambda: has_done(batch, 100), "it is at work", seconds=PATIENCE)
        with Management(address_of(vhost)) as management:
            management.delete_queue(TARGET, only_if_empty=False)
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    counts = fresh(batch).counts()
    assert counts["returned"] > 0
    # A quorum queue refuses what is on its way into it at that moment.
    assert counts["failed"] == counts["cancelled"] == 0
    given_back = counts["returned"] + counts["unknown"]
    assert ParkedMessage.objects.filter(state=ParkedState.PARKED).count() == given_back
    assert counts["done"] + given_back == 1000


@every_generation
def test_what_is_bound_nowhere_and_what_has_no_exchange_say_so_each(vhost: Vhost) -> None:
    declare(vhost, "classic")
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("lonely"))
    ways = (a_route("", TARGET), a_route("lonely", "k"), a_route("absent", "k"))
    batch = a_replay(vhost, 300, *ways)
    with replaying():
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    counts = fresh(batch).counts()
    assert (counts["done"], counts["returned"], counts["failed"]) == (100, 100, 100)
    errors = set(batch.items.exclude(state="done").values_list("error", flat=True))
    assert errors == {
        "The exchange “lonely” has no queue for the key “k”. RabbitMQ returned the message.",
        "The exchange “absent” does not exist.",
    }
    lost_nothing(batch, arrived(vhost))


def says_it_is_full() -> bool:
    rows = (*BackgroundTask.objects.values_list("last_error"), *Work.objects.values_list("error"))
    return any("full" in error for (error,) in rows)


@pytest.mark.sqlite
@every_generation
@of_each_kind
def test_a_full_database_stops_it_is_said_and_is_got_over(vhost: Vhost, kind: str) -> None:
    declare(vhost, kind)
    batch = a_replay(vhost, 3000)
    with full_database() as full, replaying():
        eventually(says_it_is_full, "it is said", seconds=PATIENCE)
        full.clear()
        forget_leases()
        eventually(lambda: has(batch, BatchState.DONE), "it goes on by itself", seconds=PATIENCE)
    adds_up(batch)
    lost_nothing(batch, arrived(vhost))
    assert fresh(batch).done == 3000


@pytest.mark.sqlite
@newest_generation
def test_a_locked_database_is_waited_for(vhost: Vhost) -> None:
    declare(vhost, "classic")
    batch = a_replay(vhost, 1000, rate=400)
    with replaying():
        eventually(lambda: has_done(batch, 100), "it is at work", seconds=PATIENCE)
        locking = sqlite3.connect(
            connection.settings_dict["NAME"], timeout=20, isolation_level=None
        )
        locking.execute("BEGIN IMMEDIATE")
        done = fresh(batch).done
        assert fresh(batch).done == done
        locking.execute("ROLLBACK")
        locking.close()
        eventually(lambda: has(batch, BatchState.DONE), "it goes on by itself", seconds=PATIENCE)
    adds_up(batch)
    lost_nothing(batch, arrived(vhost))
    assert (fresh(batch).done, fresh(batch).doubled) == (1000, 0)


@newest_generation
def test_pausing_resuming_and_cancelling_act_and_then_nothing_is_published(vhost: Vhost) -> None:
    declare(vhost, "classic")
    batch = a_replay(vhost, 2000, rate=400)
    with replaying():
        eventually(lambda: has_done(batch, 50), "it is at work", seconds=PATIENCE)
        batch_state.pause(None, batch)
        eventually(lambda: has(batch, BatchState.PAUSED), "it is paused")
        done = fresh(batch).done
        assert unsettled(batch) == 0
        assert arrived(vhost).total() == done == fresh(batch).done
        batch_state.resume(None, batch)
        eventually(lambda: has_done(batch, done + 50), "it goes on")
        batch_state.cancel(None, batch)
        eventually(lambda: has(batch, BatchState.CANCELLED), "it is cancelled")
        eventually(lambda: fresh(batch).pending == 0, "all is given back")
    adds_up(batch)
    row = fresh(batch)
    assert arrived(vhost).total() == row.done - done
    assert ParkedMessage.objects.filter(state=ParkedState.PARKED).count() == 2000 - row.done


@newest_generation
def test_cancelled_within_its_undo_window_it_has_published_nothing(vhost: Vhost) -> None:
    declare(vhost, "classic")
    batch = a_replay(vhost, 3000, undo_seconds=3600)
    with replaying():
        eventually(lambda: fresh(batch).claimed_to == 3000, "the parked messages are claimed")
        batch_state.cancel(None, batch)
        eventually(lambda: fresh(batch).pending == 0, "all is given back")
    adds_up(batch)
    assert ParkedMessage.objects.filter(state=ParkedState.PARKED).count() == 3000
    assert fresh(batch).state == BatchState.CANCELLED
    assert arrived(vhost).total() == 0


@newest_generation
def test_of_two_overlapping_replays_each_message_goes_once(vhost: Vhost) -> None:
    declare(vhost, "classic")
    first = a_replay(vhost, 2000, rate=2000)
    found = [item.parked_message for item in first.items.select_related("parked_message__broker")]
    more = parked_messages(first.broker, 500)
    both = [parked_message for parked_message in found if parked_message is not None][1000:] + more
    second = a_replay(vhost, 0, of=both)
    assert f"1000 with “The message is in replay {first.pk}.”" in fresh(second).state_why
    with replaying(2):
        for batch in (first, second):
            eventually(partial(has, batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(first)
    adds_up(second)
    assert arrived(vhost).total() == 2500
    assert (fresh(first).done, fresh(second).done, fresh(second).cancelled) == (2000, 500, 1000)
    assert sum(event.kind == "replayed" for _, event in oldest(10_000)) == 2500
