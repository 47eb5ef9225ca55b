"""Acknowledging and snoozing problems on Now: by whom, until when, and what the audit log has."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delayboard.models import Acknowledgement, BatchState
from delayboard.now.acknowledge import acknowledge, split
from delayboard.now.problems import Problem, ProblemKind
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db
SENTENCE = "is paused. Because. Resume or cancel it."


@pytest.fixture(autouse=True)
def paused(broker: Broker) -> str:
    """The identity of the only problem of this broker."""
    know(broker, Queue("orders"))
    row = a_batch(broker, state=BatchState.PAUSED, state_why="Because.")
    return f"Replay {row.pk} {SENTENCE}"


def send(client: Client, identity: str, hours: str) -> Any:
    address = reverse("acknowledge", query={"problem": identity})
    return client.post(address, {"for": hours, "next": "/"}, follow=True)


def test_an_operator_acknowledges_a_problem_and_withdraws_it(broker: Broker, paused: str) -> None:
    client = signed_in(Role.OPERATOR, broker)
    assert "Acknowledge until it ends" in text_of(client.get("/"))
    text = text_of(send(client, paused, ""))
    assert "Acknowledged until the problem ends. No alert reports it in this time." in text
    row = Acknowledgement.objects.get()
    assert (row.identity, row.broker, row.until_at) == (paused, broker, None)
    assert "1 acknowledged" in text
    assert "Acknowledge until it ends" not in text
    assert "The problem is reported again." in text_of(send(client, paused, "end"))
    assert not Acknowledgement.objects.exists()
    actions = AuditEntry.objects.order_by("pk").values_list("action", "what", "broker")
    assert list(actions) == [
        ("problem acknowledged", paused, broker.pk),
        ("acknowledgement withdrawn", paused, broker.pk),
    ]


def test_another_error_of_the_same_object_needs_somebody_again(broker: Broker) -> None:
    first = Problem("error", ProblemKind.TASKS, "It fails.", key="failing/a", error="Try 1: full.")
    acknowledge(None, first, broker, None)
    assert split([replace(first, error="Try 2: full.")], timezone.now())[0] == []
    other = replace(first, error="Try 3: refused.")
    assert split([other], timezone.now())[0] == [other]


def test_a_problem_that_became_an_error_needs_somebody_again(broker: Broker) -> None:
    soon = Problem("warning", ProblemKind.BROKER, "It expires.", key="certificate")
    acknowledge(None, soon, broker, None)
    assert split([soon], timezone.now())[0] == []
    expired = replace(soon, severity="error", sentence="It expired.")
    assert split([expired], timezone.now())[0] == [expired]


def test_a_snoozed_problem_returns_when_its_time_is_over(broker: Broker, paused: str) -> None:
    client = signed_in(Role.OPERATOR, broker)
    assert "1 acknowledged" in text_of(send(client, paused, "8"))
    row = Acknowledgement.objects.get()
    assert row.until_at is not None
    assert timedelta(hours=7) < row.until_at - timezone.now() <= timedelta(hours=8)
    Acknowledgement.objects.update(until_at=timezone.now())
    text = text_of(client.get("/"))
    assert "acknowledged" not in text
    assert SENTENCE in text


def test_a_viewer_acknowledges_nothing(broker: Broker, paused: str) -> None:
    client = signed_in(Role.VIEWER, broker)
    assert "Snooze" not in text_of(client.get("/"))
    assert send(client, paused, "").status_code == 403
    assert not Acknowledgement.objects.exists()


def test_a_problem_of_delayboard_needs_a_role_on_every_broker(broker: Broker) -> None:
    worker = "The worker is not running, so Delayboard records, replays and reports nothing."
    client = signed_in(Role.OPERATOR, broker)
    assert worker in text_of(client.get("/"))
    assert send(client, worker, "1").status_code == 403
    assert "1 acknowledged" in text_of(send(signed_in(Role.OPERATOR, None), worker, "1"))


@pytest.mark.parametrize(
    ("identity", "hours", "words"),
    [
        ("no such problem", "1", "Not acknowledged: the problem is already resolved."),
        ("", "999999", "Not snoozed: select one of the times."),
    ],
)
def test_bad_input_changes_nothing(
    broker: Broker, paused: str, identity: str, hours: str, words: str
) -> None:
    text = text_of(send(signed_in(Role.OPERATOR, broker), identity or paused, hours))
    assert words in text
    assert not Acknowledgement.objects.exists()
