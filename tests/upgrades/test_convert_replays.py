"""Replays of the version before, which took messages out of live queues, after migrating."""

from __future__ import annotations

import pytest

from delayboard.models import ReplayBatch
from topology.models import Broker, Work

pytestmark = pytest.mark.both_databases


def test_old_replays_are_kept_add_up_and_no_longer_run(migrated: None) -> None:
    batches = {batch.queue: batch for batch in ReplayBatch.objects.all()}
    assert len({batch.uid for batch in batches.values()}) == 3
    assert [batches[queue].state for queue in ("draft", "ended", "running")] == [
        "cancelled",
        "done",
        "cancelled",
    ]
    assert batches["ended"].counts() == {
        "done": 2,
        "returned": 1,
        "nacked": 0,
        "failed": 1,
        "cancelled": 0,
        "excluded": 0,
        "pending": 0,
    }
    assert (batches["running"].cancelled, batches["running"].doubled) == (2, 1)
    assert "park the messages" in batches["running"].state_why
    assert Work.objects.get(kind="replay", replaybatch=batches["running"]).state == "cancelled"
    first, second = batches["ended"].routes.all()
    assert (first.routing_key, first.items_number) == ("orders", 2)
    assert (second.routing_key, second.items_number) == ("other", 2)
    assert all(item.route is not None for item in batches["ended"].items.all())
    assert Broker.objects.get().name == "Replays"
