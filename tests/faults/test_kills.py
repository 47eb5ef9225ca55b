"""Killing the recorder at any moment leaves nothing that its next start does not put right."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from django.utils import timezone
from pytest_django import Settings

from analytics.events import MessageEvent
from analytics.models import Minute, ScheduledMessage
from analytics.recorder.record import PREFETCH
from delayboard.demo.node import PrivateNode
from tests.analytics.day_lines import read_day
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, eventually
from tests.faults.forking import forked
from tests.publishing import publisher
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Topology

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@every_generation
@pytest.mark.parametrize(
    ("kills", "messages"),
    [(3, 600), pytest.param(20, 5000, marks=pytest.mark.long)],
)
def test_a_recorder_that_is_killed_loses_no_copy(
    broker_node: PrivateNode, vhost: Vhost, settings: Settings, kills: int, messages: int
) -> None:
    topology = applied_pair(vhost, delay="1h")
    sent = [f"m{number}" for number in range(messages)]
    shares = [sent[number :: kills + 1] for number in range(kills + 1)]
    for share in shares[:-1]:
        known = len(recorded(settings, topology))
        publisher_of_share = Thread(target=delay_all, args=(vhost, share))
        with forked("worker", "--only", "recorder"):
            publisher_of_share.start()
            goal = known + random.randint(1, len(share) * 3 // 4)
            eventually(partial(has_recorded, settings, topology, goal), "the recorder is at work")
        publisher_of_share.join()
    delay_all(vhost, shares[-1])
    with forked("worker", "--only", "recorder"):
        eventually(partial(has_recorded, settings, topology, messages), "every copy is in the log")
        eventually(
            lambda: ScheduledMessage.objects.filter(topology=topology).count() == messages,
            "every copy is in the index",
        )
    copies = recorded(settings, topology)
    unmarked = Counter(event.message_id for event in logged(settings) if not event.redelivered)
    assert set(copies) == set(sent)
    assert set(unmarked.values()) == {1}
    assert copies.total() - messages <= kills * PREFETCH
    assert sum(minute.entered for minute in Minute.objects.all()) == messages
    rows = ScheduledMessage.objects.filter(topology=topology, left_at=None)
    assert Counter(rows.values_list("message_id", flat=True)) == dict.fromkeys(sent, 1)


def delay_all(vhost: Vhost, names: list[str]) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for name in names:
            properties = build_properties(message_id=name, delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", properties, b"{}"))


def recorded(settings: Settings, topology: Topology) -> Counter[str]:
    return Counter(e.message_id for e in logged(settings) if e.topology == topology.slug)


def has_recorded(settings: Settings, topology: Topology, number: int) -> bool:
    return len(recorded(settings, topology)) >= number


def logged(settings: Settings) -> list[MessageEvent]:
    if not settings.EVENT_LOG.exists():
        return []
    today = timezone.now().date()
    days = (today - timedelta(days=1), today)
    return [event for day in days for event in read_day(settings.EVENT_LOG, day)]
