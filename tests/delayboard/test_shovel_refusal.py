"""Which queues a shovel may move: none whose messages it may lose."""

from __future__ import annotations

import pytest

from delayboard.dead_letters.shovel import PARK, explain_costly, explain_refusal
from topology.definitions import Arguments, Queue
from topology.routing.context import delivery_limit

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
        assert f"“dead” has the delivery limit {limit}." in said
        assert said.endswith(PARK)


WORK, BOUNDED = Queue("work"), Queue("work", arguments=Arguments({"x-max-length": 9}))


@pytest.mark.parametrize(
    ("source", "targets", "version", "reason"),
    [
        (Queue("dead"), (WORK,), COSTS, ""),
        (Queue("dead"), (), COSTS, "no queue with the name of the destination"),
        (Queue("dead"), (WORK,), OLD, "keeps x-death"),
        (Queue("dead"), (WORK, BOUNDED), COSTS, "“work” has a maximum length"),
        (quorum(), (WORK,), COSTS, "“dead” has the delivery limit 20"),
    ],
)
def test_a_shovel_that_may_lose_messages_is_refused(
    source: Queue, targets: tuple[Queue, ...], version: tuple[int, ...], reason: str
) -> None:
    assert reason in (refusal := explain_refusal((source,), targets, version))
    assert bool(refusal) == bool(reason)
