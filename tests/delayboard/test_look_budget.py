from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from delayboard.dead_letters.parked import store_batch
from delayboard.dead_letters.parked.consume import make_store
from delayboard.dead_letters.parked.store_batch import StoreFailed
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.peek import Budget, count_deliveries, find_costs
from delayboard.models import PeekCount
from tests.builders import make_broker
from tests.delayboard.builders import a_message
from tests.topology.builders import NOON, a_queue, a_snapshot
from topology.broker.errors import Unsupported
from topology.definitions import Definitions, Queue
from topology.models import Broker
from topology.snapshot import QueueNumbers, Snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker() -> Broker:
    return make_broker()


QUEUE = a_queue("dead", type="quorum")


def known(version: str = "4.0.5", **numbers: Any) -> Snapshot:
    counted = {"dead": QueueNumbers(**numbers)} if numbers else {}
    return a_snapshot(Definitions.of([QUEUE]), counted, version=version)


def budget(broker: Broker, **numbers: Any) -> Budget:
    found = peek.read_budget(broker, QUEUE, known(**numbers))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("queue", "version", "limit"),
    [
        (a_queue("q"), (4, 0, 5), None),
        (a_queue("q", type="quorum"), (4, 0, 5), 20),
        (a_queue("q", type="quorum"), (3, 13, 7), None),
        (a_queue("q", type="quorum", x_delivery_limit=7), (3, 10, 8), 7),
        (a_queue("q", type="quorum", x_delivery_limit=-1), (4, 2, 0), None),
        (a_queue("q", type="quorum", x_delivery_limit=7), (4, 3, 0), None),
    ],
)
def test_a_look_costs_a_delivery_only_where_returns_are_counted(
    queue: Queue, version: tuple[int, ...], limit: int | None
) -> None:
    assert find_costs(queue, version) == limit


def test_each_look_is_counted_before_it_is_made_and_the_last_three_are_not_spent(
    broker: Broker,
) -> None:
    assert budget(broker).remaining == 20
    for made in range(1, 18):
        assert peek.count_peek(broker, QUEUE, budget(broker)) == made
    assert (budget(broker).remaining, budget(broker).is_short) == (3, True)
    with pytest.raises(Unsupported, match="3 of 20 deliveries left"):
        peek.count_peek(broker, QUEUE, budget(broker))
    assert PeekCount.objects.get().peeks == 17


def test_two_looks_that_begin_at_once_cannot_both_take_the_last(broker: Broker) -> None:
    peek.learn_deliveries(
        broker, QUEUE, peek.count_peek(broker, QUEUE, budget(broker)), 15, saw_all=False
    )
    before = budget(broker)
    peek.count_peek(broker, QUEUE, before)
    with pytest.raises(Unsupported):
        peek.count_peek(broker, QUEUE, before)


def test_what_messages_say_raises_the_count_and_lowers_it_only_where_all_were_seen(
    broker: Broker,
) -> None:
    counted = peek.count_peek(broker, QUEUE, budget(broker))
    peek.learn_deliveries(broker, QUEUE, counted, 9, saw_all=False)
    assert budget(broker).spent == 10
    counted = peek.count_peek(broker, QUEUE, budget(broker))
    peek.learn_deliveries(broker, QUEUE, counted, 2, saw_all=False)
    assert budget(broker).spent == 11
    other = peek.count_peek(broker, QUEUE, budget(broker))
    assert other == 12
    peek.learn_deliveries(broker, QUEUE, counted, 2, saw_all=True)
    assert budget(broker).spent == 12
    peek.learn_deliveries(broker, QUEUE, other, 2, saw_all=True)
    assert budget(broker).spent == 3


def test_a_queue_that_was_empty_after_the_last_look_owes_nothing(broker: Broker) -> None:
    for _ in range(9):
        peek.count_peek(broker, QUEUE, budget(broker))
    PeekCount.objects.update(last_at=NOON - timedelta(minutes=1))
    assert budget(broker, messages=1).remaining == 11
    empty = budget(broker, messages=0)
    assert empty.remaining == 20
    assert peek.count_peek(broker, QUEUE, empty) == 1
    assert peek.count_peek(broker, QUEUE, empty) == 2


def test_numbers_from_before_the_last_look_forgive_nothing(broker: Broker) -> None:
    """They may say for seconds that a queue is empty which was filled and looked into since."""
    for made in range(1, 18):
        assert peek.count_peek(broker, QUEUE, budget(broker, messages=0)) == made
    with pytest.raises(Unsupported):
        peek.count_peek(broker, QUEUE, budget(broker, messages=0))
    PeekCount.objects.update(last_at=NOON - timedelta(seconds=2))
    assert budget(broker, messages=0).remaining == 3


def test_queues_and_brokers_are_counted_apart(broker: Broker) -> None:
    peek.count_peek(broker, QUEUE, budget(broker))
    other = make_broker(name="Other")
    assert budget(other).remaining == 20
    assert peek.read_budget(broker, a_queue("q\x00" * 60, type="quorum"), known()) == Budget(20, 0)


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        ({}, 0),
        ({"x-delivery-count": 3}, 3),
        ({"x-delivery-count": 3, "x-acquired-count": 5}, 5),
        ({"x-delivery-count": "many"}, 0),
        ({"x-delivery-count": True}, 0),
    ],
)
def test_deliveries_are_what_the_broker_counted(headers: dict[str, Any], count: int) -> None:
    assert count_deliveries(a_message(headers=headers)) == count


def test_without_the_policies_of_this_moment_nothing_is_peeked(broker: Broker) -> None:
    with pytest.raises(Unsupported, match="Without the queue's delivery limit, a peek may"):
        peek.peek_queue(broker, QUEUE, known())
    with pytest.raises(Unsupported, match="does not report its version"):
        peek.read_now(broker, QUEUE, ())
    assert not PeekCount.objects.exists()
    assert peek.read_now(broker, QUEUE, (4, 3, 6)) == (QUEUE,)
    assert peek.read_now(broker, a_queue("classic"), (4, 0, 5)) == (a_queue("classic"),)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delivery limit is as the snapshot says; a connection to the queue is an error."""

    def getter(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("A message was asked for.")

    monkeypatch.setattr(peek, "read_now", lambda broker, queue, version: (queue,))
    monkeypatch.setattr(peek, "getter", getter)


@contextmanager
def full_disk(table: str) -> Iterator[None]:
    def execute(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT") and table in sql:
            raise OperationalError("database or disk is full")
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield


@pytest.mark.django_db(transaction=True)
def test_nothing_is_taken_that_costs_a_delivery_while_nothing_can_be_stored(
    broker: Broker, untouched: None
) -> None:
    store = make_store(broker, QUEUE.name, None)
    with (
        full_disk("body"),
        pytest.raises(StoreFailed, match=r"disk is full.*remain in their queue"),
    ):
        peek.peek_queue(broker, QUEUE, known(), store=store)
    assert not PeekCount.objects.exists()


def test_nothing_is_taken_that_costs_a_delivery_by_who_can_store_nothing(
    broker: Broker, untouched: None
) -> None:
    """A queue may have got a delivery limit since the snapshot in which peeks were free."""
    with pytest.raises(peek.PeekRefused, match="uses one delivery of each message in this queue"):
        peek.peek_queue(broker, QUEUE, known())
    assert not PeekCount.objects.exists()


@pytest.mark.parametrize("table", ["parksession", "parkedmessage"])
def test_a_last_message_that_was_not_stored_is_not_said_to_stay(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(store_batch, "HOLD_SECONDS", -1.0)
    store = make_store(broker, QUEUE.name, None)
    with full_disk(table), pytest.raises(StoreFailed, match="dropped it or") as failed:
        store.keep(a_message())
    assert "remain in their queue" not in str(failed.value)
