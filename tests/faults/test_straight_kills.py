"""A replay straight through that is killed at any moment: nothing is lost, and it adds up."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pytest_django import Settings

from delayboard.models import BatchState, ReplayBatch
from tests.brokers import Vhost
from tests.builders import eventually
from tests.faults.forking import forked
from tests.faults.replays import forget_leases, fresh, has
from tests.real_broker.test_straight import a_batch, counts, declared, depth, drained, filled
from topology.definitions import Arguments, Queue

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 90.0


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.mark.parametrize(
    ("kind", "kills"),
    [("classic", 2), ("quorum", 2), pytest.param("quorum", 20, marks=pytest.mark.long)],
)
def test_kills_lose_nothing_and_say_what_may_be_there_twice(
    vhost: Vhost, settings: Settings, kind: str, kills: int
) -> None:
    messages = 2000 * (kills + 1)
    arguments = Arguments({"x-queue-type": kind})
    declared(vhost, Queue("dead", arguments=arguments), Queue("target", arguments=arguments))
    filled(vhost, "dead", messages)
    batch = a_batch(vhost, "dead", rate=500.0)
    for count in range(kills):
        goal = depth(vhost, "target") + random.randint(1, 300)
        with forked("run_replayer"):
            eventually(
                partial(is_at, vhost, goal), f"it is at work, time {count}", seconds=PATIENCE
            )
        forget_leases()
    ReplayBatch.objects.update(rate=None)
    with forked("run_replayer"):
        eventually(lambda: has(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    assert depth(vhost, "dead") == 0
    come = drained(vhost, "target", depth(vhost, "target"))
    seen = Counter(one.message.body for one in come)
    assert len(seen) == messages
    batch = fresh(batch)
    assert set(counts(batch)) <= {"done", "cancelled"}
    assert seen.total() - messages <= batch.doubled <= kills * settings.MESSAGES_IN_FLIGHT


def is_at(vhost: Vhost, number: int) -> bool:
    return depth(vhost, "target") >= number
