"""An import of timeouts that is killed, and started again with the same file, loses none."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pytest_django import Settings

from delayboard.models import ImportedTimeout
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, eventually
from tests.faults.forking import forked
from tests.faults.processes import environment, started
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.patterns.delay_levels.params import Params

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES = 600
KILLS = 3
ENDS_WITHIN_SECONDS = 60


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def drained(vhost: Vhost, queue: str) -> Counter[str]:
    ids: Counter[str] = Counter()
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            source.ack(delivery)
            ids[delivery.message.properties.message_id or ""] += 1
    return ids


def has_published(number: int) -> bool:
    return published() >= number


def published() -> int:
    return ImportedTimeout.objects.exclude(published_at=None).count()


def test_every_timeout_arrives_and_what_arrives_twice_is_said(vhost: Vhost, tmp_path: Path) -> None:
    topology = applied_levels(vhost, Params("own", "shop", 4))
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    names = [f"m{number}" for number in range(MESSAGES)]
    due = {"destination": "work", "due_at": datetime.now(UTC).isoformat(), "body": "{}"}
    file = tmp_path / "timeouts.jsonl"
    file.write_text("\n".join(json.dumps({**due, "message_id": name}) for name in names))
    command = ("import_timeouts", topology.slug, str(file))
    for _ in range(KILLS):
        goal = published() + random.randint(1, 20)
        with forked(*command, "--rate", "20"):
            eventually(partial(has_published, goal), "it makes progress")
    with started(*command, variables=environment()) as importing:
        assert importing.wait(ENDS_WITHIN_SECONDS) == 0
    arrived = drained(vhost, "work")
    assert set(arrived) == set(names)
    assert published() == ImportedTimeout.objects.count() == MESSAGES
    marked = ImportedTimeout.objects.filter(may_be_doubled=True).count()
    assert arrived.total() - MESSAGES <= marked <= KILLS
