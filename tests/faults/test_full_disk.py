"""A log that cannot be written: nothing is acknowledged, it is said, and it goes on by itself."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from analytics.events import MessageEvent
from analytics.log import hour_folder
from analytics.models import ScheduledMessage
from delayboard.demo.node import PrivateNode
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.analytics.day_lines import days, read_day
from tests.brokers import Vhost, newest_generation
from tests.builders import address_of, applied_pair, eventually, make_user
from tests.faults import cramped
from tests.faults.processes import environment, started
from tests.publishing import publisher
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Role, Topology

pytestmark = [
    pytest.mark.django_db(transaction=True),
    newest_generation,
]
DISK_BYTES = 4_000_000
BEFORE, MESSAGES = 20, 500
PATIENCE = 90.0


@pytest.fixture
def front_page() -> Callable[[], str]:
    client = Client()
    client.force_login(make_user("ada", Role.ADMIN))
    return lambda: html.unescape(client.get(reverse("now")).content.decode())


def delay_all(vhost: Vhost, first: int, number: int) -> set[str]:
    names = [f"m{count}" for count in range(first, first + number)]
    with publisher(address_of(vhost), "test") as channel:
        for name in names:
            stated = build_properties(message_id=name, delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", stated, b"{}"))
    return set(names)


def logged(log: Path) -> list[MessageEvent]:
    return [event for day in days(log) for event in read_day(log, day)]


def malformed(log: Path) -> int:
    lines = [read_day(log, day) for day in days(log)]
    return sum(one.malformed for one in lines if list(one) is not None)


def recorder_runs(topology: Topology) -> bool:
    found = BackgroundTask.objects.filter(key=task_key("record", topology.slug)).first()
    return found is not None and not found.is_late and not found.is_failing


def leave_a_torn_line(log: Path) -> None:
    """As another recorder's crash does."""
    hour = hour_folder(log, datetime.now(UTC))
    hour.mkdir(parents=True, exist_ok=True)
    (hour / "tap.orders.crashed-1.jsonl").write_bytes(b'{"v":1,"event_id":"x","ki')


def all_is_there_as_promised(topology: Topology, log: Path, sent: set[str]) -> None:
    """Every message in the log; repeats are marked."""
    copies = Counter(event.message_id for event in logged(log))
    assert set(copies) == sent
    repeated = {name for name, times in copies.items() if times > 1}
    assert repeated <= {event.message_id for event in logged(log) if event.redelivered}
    assert malformed(log) == 1
    eventually(
        lambda: ScheduledMessage.objects.filter(topology=topology).count() == len(sent),
        "every message is in the index, once",
        seconds=PATIENCE,
    )


def test_a_full_disk_stops_the_recording_is_said_and_is_got_over_without_a_restart(
    broker_node: PrivateNode,
    vhost: Vhost,
    settings: Settings,
    tmp_path: Path,
    front_page: Callable[[], str],
) -> None:
    inside = settings.EVENT_LOG = tmp_path / "log"
    inside.mkdir()
    topology = applied_pair(vhost, delay="1h")
    within = cramped.small_disk(inside, DISK_BYTES)
    with started("worker", variables=environment(), within=within) as worker:
        log = settings.EVENT_LOG = cramped.seen_from_outside(worker, inside)
        leave_a_torn_line(log)
        eventually(lambda: recorder_runs(topology), "the recorder is at work")
        sent = delay_all(vhost, 0, BEFORE)
        eventually(lambda: len(logged(log)) == BEFORE, "the first are in the log")
        assert "The disk of the event log" in front_page()
        cramped.fill(log)
        sent |= delay_all(vhost, BEFORE, MESSAGES)
        sentence = f"Delayboard cannot write the event log in {inside}: no space left on device."
        eventually(lambda: sentence in front_page(), "the page says it", seconds=PATIENCE)
        assert "The disk of the event log is full" in front_page()
        assert "All systems normal" not in front_page()
        assert len(logged(log)) < BEFORE + MESSAGES
        assert {event.message_id for event in logged(log)} < sent
        assert malformed(log) == 1
        cramped.empty(log)
        eventually(
            lambda: {event.message_id for event in logged(log)} == sent,
            "what was published meanwhile is in the log",
            seconds=PATIENCE,
        )
        all_is_there_as_promised(topology, log, sent)
        eventually(
            lambda: "cannot write the event log" not in front_page(),
            "the page says it no more",
            seconds=PATIENCE,
        )
        assert worker.poll() is None


def test_a_folder_that_may_not_be_written_is_said_and_got_over_without_a_restart(
    vhost: Vhost, settings: Settings, tmp_path: Path, front_page: Callable[[], str]
) -> None:
    log = settings.EVENT_LOG = tmp_path / "log"
    log.mkdir(mode=0o555)
    topology = applied_pair(vhost, delay="1h")
    with started("worker", variables=environment(), within=cramped.ORDINARY) as worker:
        sent = delay_all(vhost, 0, BEFORE)
        sentence = f"Delayboard cannot write the event log in {log}: permission denied."
        eventually(lambda: sentence in front_page(), "the page says it", seconds=PATIENCE)
        assert logged(log) == []
        log.chmod(0o755)
        leave_a_torn_line(log)
        eventually(
            lambda: {event.message_id for event in logged(log)} == sent,
            "what was published meanwhile is in the log",
            seconds=PATIENCE,
        )
        all_is_there_as_promised(topology, log, sent)
        eventually(
            lambda: "cannot write the event log" not in front_page(),
            "the page says it no more",
            seconds=PATIENCE,
        )
        assert worker.poll() is None
