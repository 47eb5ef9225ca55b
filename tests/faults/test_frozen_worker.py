"""A worker whose broker is frozen, or that is stopped itself: it says so, and goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from delayboard.demo.node import PrivateNode
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.analytics.builders import logged
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_user
from tests.faults.freezing import frozen, is_stopped
from tests.faults.processes import environment, started
from tests.publishing import publisher
from topology.broker.amqp.depths import live_depths
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Role

LATE = 2500


@pytest.mark.django_db(transaction=True)
def test_a_recorder_shows_as_late_while_its_broker_is_frozen_and_recovers_without_a_restart(
    vhost: Vhost, broker_node: PrivateNode, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    recorder = BackgroundTask.objects.filter(
        key=task_key("record", applied_pair(vhost, delay="1h").slug)
    )
    client = Client()
    client.force_login(make_user("ada", Role.ADMIN))

    def runs() -> bool:
        return any(
            not background_task.is_late and not background_task.is_failing
            for background_task in recorder.all()
        )

    def recorded() -> bool:
        return any(
            background_task.details.get("recorded") == 1 for background_task in recorder.all()
        )

    with started("worker", "--only", "recorder", variables=environment()) as worker:
        eventually(runs, "the recorder is at work")
        with frozen(broker_node):
            eventually(lambda: not runs(), "the recorder shows that it is not")
            page = client.get(reverse("system")).content.decode()
            assert "No heartbeat" in page or "Failing" in page
            page = client.get(reverse("now")).content.decode()
            assert "not answer" in page
            assert not BackgroundTask.objects.get(key="facts").is_late
        eventually(runs, "the recorder is at work again")
        with publisher(address_of(vhost), "test") as channel:
            channel.publish(Publish("orders-retry", "orders", build_properties(), b"{}"))
        eventually(recorded, "it records again")
        assert worker.poll() is None
    assert "Running" in client.get(reverse("system")).content.decode()


@pytest.mark.django_db(transaction=True)
def test_no_copy_that_waited_for_a_stopped_worker_is_measured(
    vhost: Vhost, settings: Settings, tmp_path: Path
) -> None:
    """More than a socket holds: the rest comes once the worker reads again, as if just copied."""
    settings.EVENT_LOG = tmp_path / "log"
    topology = applied_pair(vhost, delay="1h")
    recorder = BackgroundTask.objects.filter(key=task_key("record", topology.slug))

    def publish(name: str, number: int) -> None:
        with publisher(address_of(vhost), "test") as channel:
            for _ in range(number):
                stated = build_properties(message_id=name)
                channel.publish(Publish("orders-retry", "orders", stated, b"x" * 4000))

    def of(name: str) -> list[bool]:
        return [event.caught_up for event in logged(tmp_path / "log") if event.message_id == name]

    def is_measured_again() -> bool:
        publish("after", 1)
        return any(of("after"))

    with started("worker", "--only", "recorder", variables=environment()) as worker:
        eventually(
            lambda: any(task.details.get("caught_up") for task in recorder.all()), "it reads"
        )
        os.killpg(worker.pid, signal.SIGSTOP)
        eventually(lambda: is_stopped(worker.pid), "it is stopped")
        publish("stopped", LATE)
        eventually(
            lambda: live_depths(address_of(vhost), ["orders-retry"])["orders-retry"] == LATE,
            "all came",
        )
        os.killpg(worker.pid, signal.SIGCONT)
        eventually(lambda: len(of("stopped")) == LATE, "all are recorded")
        eventually(is_measured_again, "later copies are measured")
    assert of("stopped") == [False] * LATE
