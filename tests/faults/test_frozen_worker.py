"""A worker whose broker is frozen: its tasks say so, and go on when it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from delayboard.demo.node import PrivateNode
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_user
from tests.faults.freezing import frozen
from tests.faults.processes import environment, started
from tests.publishing import publisher
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Role


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
