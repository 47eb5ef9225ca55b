"""What the page of a busy wait says of its forwarder."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait

pytestmark = pytest.mark.django_db
HOOKS = busy_wait_params.Params("hooks", (timedelta(minutes=1),))
COUNTERS = {"passed": 1200, "without_due_header": 0, "late_p50_ms": 3, "late_p99_ms": 40}


@pytest.fixture
def hooks(broker: Broker) -> Topology:
    topology = create_topology(None, broker, busy_wait.KIND, HOOKS)
    topology.state = State.APPLIED
    topology.save()
    know(broker, *busy_wait.definitions(HOOKS), a_queue("hooks"))
    return topology


def page_with(hooks: Topology, **changes: Any) -> str:
    values = {"name": "Forwarder", "beat_at": timezone.now(), "details": COUNTERS}
    BackgroundTask.objects.create(key=task_key("wait", hooks.slug), **(values | changes))
    return page(hooks)


def page(topology: Topology) -> str:
    return text_of(signed_in(Role.VIEWER).get(reverse("topology:topology", args=[topology.slug])))


def test_one_that_runs_says_how_late_it_passes_on(hooks: Topology) -> None:
    text = page_with(hooks)
    assert "forwarded 1 200 messages" in text.replace("\u202f", " ").replace("\u00a0", " ")
    assert "lateness p50 3ms" in text
    assert "had no due-time header" not in text


def test_messages_without_a_due_header_are_pointed_out(hooks: Topology) -> None:
    text = page_with(hooks, details=COUNTERS | {"without_due_header": 7})
    assert "7 messages had no due-time header" in text


def test_without_a_forwarder_the_page_says_that_messages_go_round(hooks: Topology) -> None:
    assert "No forwarder is running" in page(hooks)


def test_a_forwarder_that_fell_silent_is_none(hooks: Topology) -> None:
    long_ago = timezone.now() - timedelta(minutes=1)
    assert "No forwarder is running" in page_with(hooks, beat_at=long_ago)


def test_one_that_fails_says_why(hooks: Topology) -> None:
    assert "The forwarder fails: no queue" in page_with(hooks, last_error="no queue")


def test_where_none_is_needed_nothing_is_said(hooks: Topology) -> None:
    Topology.objects.update(state=State.PLANNED)
    assert "forwarder is running" not in page(hooks)
