"""Which live queues go straight through: none whose messages that would cost their lives."""

from __future__ import annotations

import pytest

from delayboard.dead_letters.replay.move_queue.delivery_limit import (
    PARK,
    choose_prefetch,
    explain_costly,
    explain_near_limit,
)
from topology.broker.amqp.deliveries import Arrival
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.routing.consumer import delivery_limit

OLD, COSTS, FREE = (3, 10, 8), (4, 0, 5), (4, 3, 6)


def quorum(limit: int | None = None) -> Queue:
    stated = {} if limit is None else {"x-delivery-limit": limit}
    return Queue("dead", arguments=Arguments({"x-queue-type": "quorum", **stated}))


@pytest.mark.parametrize(
    ("queue", "version", "limit", "is_costly"),
    [
        (Queue("dead"), COSTS, None, False),
        (quorum(), OLD, None, False),
        (quorum(50), OLD, 50, True),
        (quorum(), COSTS, 20, True),
        (quorum(50), COSTS, 50, True),
        (quorum(0), COSTS, 0, True),
        (quorum(-1), COSTS, None, False),
        (quorum(), FREE, 20, False),
        (quorum(6), FREE, 6, False),
        (quorum(5), FREE, 5, True),
        (quorum(-1), FREE, None, False),
    ],
)
def test_a_delivery_costs_where_there_is_a_limit(
    queue: Queue, version: tuple[int, ...], limit: int | None, is_costly: bool
) -> None:
    assert delivery_limit(queue, version) == limit
    said = explain_costly(queue, version)
    assert bool(said) == is_costly
    if is_costly:
        assert f"“dead” has the delivery limit {limit}:" in said
        assert said.endswith(PARK)


def arrival(**headers: object) -> Arrival:
    return Arrival(1, True, "", "dead", build_properties(headers).raw)


@pytest.mark.parametrize(
    ("count", "limit", "is_near"),
    [(15, 20, True), (14, 20, False), (3, None, False), ("20", 20, False), (None, 20, False)],
)
def test_a_message_that_few_crashes_would_destroy_is_told_of(
    count: object, limit: int | None, is_near: bool
) -> None:
    stated = {} if count is None else {"x-delivery-count": count}
    said = explain_near_limit(arrival(**stated), limit)
    assert bool(said) == is_near
    assert not is_near or said.endswith(PARK)


def test_what_comes_beforehand_is_what_a_minute_takes_and_memory_holds() -> None:
    assert choose_prefetch(2000, None, 0) == 2000
    assert choose_prefetch(2000, None, 1_000_000) == 134
    assert choose_prefetch(2000, 0.1, 0) == 6
    assert choose_prefetch(2000, 0.001, 10**9) == 1
