"""Replays of the version before, which took messages out of live queues, after migrating."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from delayboard.models import ReplayBatch
from topology.models import Broker, Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]
BEFORE = [("topology", "0006_mask_rule"), ("delayboard", "0004_letter_search")]


@pytest.fixture
def old() -> Iterator[Any]:
    """The models as they were; afterwards everything is as it is now."""
    executor = MigrationExecutor(connection)
    yield executor.migrate(BEFORE).apps
    call_command("migrate", verbosity=0)


def a_batch(old: Any, broker: Any, work_state: str, states: list[str]) -> int:
    work = None
    if work_state:
        works = old.get_model("topology", "Work").objects
        work = works.create(kind="replay", subject=1, broker=broker, state=work_state)
    batches = old.get_model("delayboard", "ReplayBatch").objects
    batch = batches.create(broker=broker, queue="dead", work=work)
    for position, state in enumerate(states, start=1):
        batch.items.create(
            position=position,
            content_id="c",
            message_id=f"m{position}",
            size=2,
            target_exchange="orders",
            target_key="orders" if position < 3 else "other",
            verdict="Arrives in orders at once.",
            state=state,
        )
    return int(batch.pk)


def test_old_replays_are_kept_add_up_and_no_longer_run(old: Any) -> None:
    broker = old.get_model("topology", "Broker").objects.create(name="Old", slug="old")
    draft = a_batch(old, broker, "", ["pending", "pending"])
    ended = a_batch(old, broker, "done", ["done", "confirmed", "gone", "returned"])
    running = a_batch(old, broker, "running", ["done", "publishing", "pending"])
    call_command("migrate", verbosity=0)
    batches = {batch.pk: batch for batch in ReplayBatch.objects.all()}
    assert len({batch.uid for batch in batches.values()}) == 3
    assert [batches[pk].state for pk in (draft, ended, running)] == [
        "cancelled",
        "done",
        "cancelled",
    ]
    assert batches[ended].counts() == {
        "done": 2,
        "returned": 1,
        "nacked": 0,
        "failed": 1,
        "cancelled": 0,
        "excluded": 0,
        "pending": 0,
    }
    assert (batches[running].cancelled, batches[running].doubled) == (2, 1)
    assert "park the messages" in batches[running].state_why
    assert Work.objects.get(kind="replay", replaybatch=running).state == "cancelled"
    first, second = batches[ended].routes.all()
    assert (first.routing_key, first.items_number) == ("orders", 2)
    assert (second.routing_key, second.items_number) == ("other", 2)
    assert all(item.route is not None for item in batches[ended].items.all())
    assert Broker.objects.get().name == "Old"
