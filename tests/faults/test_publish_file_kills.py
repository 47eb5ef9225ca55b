"""Publishing from a file that is killed, and started again with the same file, loses none."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from delayboard.models import PublishJob
from delayboard.publishing.publish_job import WINDOW
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, eventually
from tests.faults.forking import forked
from tests.faults.processes import environment, started
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.message import DOUBLED_HEADER, Properties
from topology.models import Work
from topology.patterns.delay_levels.params import Params

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES = 600
KILLS = 3
ENDS_WITHIN_SECONDS = 60


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def drained(vhost: Vhost, queue: str) -> list[Properties]:
    found = []
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            source.ack([delivery.tag])
            found.append(delivery.message.properties)
    return found


def has_published(number: int) -> bool:
    return published() >= number


def published() -> int:
    return sum(PublishJob.objects.values_list("published", flat=True))


def test_every_timeout_arrives_and_what_arrives_twice_is_said(vhost: Vhost, tmp_path: Path) -> None:
    topology = applied_levels(vhost, Params("own", "shop", 4))
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    names = [f"m{number}" for number in range(MESSAGES)]
    due = {"destination": "work", "due_at": datetime.now(UTC).isoformat(), "body": "{}"}
    file = tmp_path / "timeouts.jsonl"
    file.write_text("\n".join(json.dumps({**due, "message_id": name}) for name in names))
    command = ("publish", "--topology", topology.slug, "--file", str(file))
    for _ in range(KILLS):
        goal = published() + random.randint(1, 100)
        with forked(*command, "--rate", "200"):
            eventually(partial(has_published, goal), "it makes progress")
        Work.objects.update(leased_until_at=Now())
    with started(*command, variables=environment()) as publishing:
        assert publishing.wait(ENDS_WITHIN_SECONDS) == 0
    arrived = drained(vhost, "work")
    often = Counter(one.message_id for one in arrived)
    marked = {one.message_id for one in arrived if DOUBLED_HEADER in one.headers}
    assert set(often) == set(names)
    assert {name for name, times in often.items() if times > 1} <= marked
    job = PublishJob.objects.get()
    assert (job.published, job.unanswered, job.not_published) == (MESSAGES, [], [])
    assert len(marked) <= job.repeated <= KILLS * WINDOW
