"""What the soak reads from database, log and broker."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from analytics.events import MessageEvent
from analytics.log import EventLog
from analytics.models import Gap, ScheduledMessage
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.brokers import Vhost
from tests.builders import make_broker, make_pair
from tests.soak import desk
from tests.soak.traffic import message_id
from topology.models import Topology

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 9, tzinfo=UTC)


def beating(key: str, **details: object) -> BackgroundTask:
    return BackgroundTask.objects.create(key=key, name=key, beat_at=timezone.now(), details=details)


def row(topology: Topology, number: int, *, has_left: bool) -> ScheduledMessage:
    return ScheduledMessage.objects.create(
        broker=topology.broker,
        topology=topology,
        key=message_id(number),
        message_id=message_id(number),
        content_id="c",
        attempt=1,
        requested_delay=timedelta(seconds=4),
        entered_at=NOW,
        due_at=NOW,
        left_at=NOW if has_left else None,
    )


def test_the_topologies_are_recorded_when_each_has_a_background_task_that_lives() -> None:
    topology = make_pair(make_broker())
    assert not desk.are_recorded([topology])
    beating(task_key("record", topology.slug))
    assert desk.are_recorded([topology])
    BackgroundTask.objects.create(key="facts", name="facts")
    assert not desk.are_recorded([topology])


def test_the_figures_of_a_broker_that_does_not_answer_say_so() -> None:
    topology = make_pair(make_broker())
    beating("record:orders", unknown=3)
    BackgroundTask.objects.create(key="facts", name="facts", last_error="The disk is full.")
    Gap.objects.create(topology=topology, from_at=NOW, until_at=NOW, why="It was full.")
    assert desk.figures(topology.broker) == {
        "background_tasks.late": 1,
        "background_tasks.failing": 1,
        "unknown copies": 3,
        "gaps": 1,
        "index.waiting": 0,
        "index.overdue": 0,
        "broker.unanswered": 1,
    }


def test_the_figures_of_a_broker_count_its_connections(vhost: Vhost) -> None:
    figures = desk.figures(make_broker(vhost))
    assert figures["broker.unanswered"] == 0
    assert figures["broker.connections created"] >= figures["broker.connections"] >= 0


def test_everything_that_was_written_down_is_counted_by_the_number_of_its_message(
    tmp_path: Path, settings: Any
) -> None:
    settings.EVENT_LOG = tmp_path
    topology = make_pair(make_broker())
    log = EventLog(tmp_path, "test")
    log.append(
        MessageEvent(
            event_id=str(number),
            kind="scheduled",
            recorded_at=NOW,
            caught_up=True,
            source="tap",
            broker="b",
            topology=slug,
            message_id=message_id(7),
        )
        for number, slug in enumerate([topology.slug, topology.slug, "another"])
    )
    log.close()
    row(topology, 8, has_left=True)
    row(topology, 9, has_left=False)
    found = desk.recorded([topology])
    assert found.scheduled == Counter({7: 2})
    assert found.delivered == found.published == Counter()
    assert found.finished_rows == Counter({8: 1})
    assert desk.open_rows([topology]) == 1
    assert desk.overdue_rows(topology.broker) == 1
