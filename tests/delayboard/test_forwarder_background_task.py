"""The forwarder as a task of the worker, as a command, and in what the publish page predicts."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from django.core.management import CommandError, call_command

from delayboard.models.background_task import task_key
from delayboard.publishing.publish_message import OutgoingMessage, predict
from delayboard.worker import tasks
from tests.topology.builders import a_queue, a_snapshot
from topology.broker.errors import Unreachable
from topology.definitions import Definitions
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology, forwarders_at, take_over
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.snapshot import QueueNumbers

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
HOOKS = busy_wait_params.Params("hooks", (MINUTE, 5 * MINUTE))


@pytest.fixture
def hooks(broker: Broker) -> Topology:
    topology = create_topology(None, broker, busy_wait.KIND, HOOKS)
    topology.state = State.APPLIED
    topology.save()
    return topology


def test_a_forwarder_is_wanted_as_long_as_its_topology_is_applied(
    pair: Topology, hooks: Topology
) -> None:
    wanted = tasks.list_tasks("me")
    task = wanted[task_key("wait", hooks.slug)]
    assert (task.name, task.broker_id) == ("Forwarder of hooks", hooks.broker_id)
    assert task_key("wait", pair.slug) not in wanted
    assert task.key not in tasks.list_tasks("me", only="recorder")
    hooks.state = State.DELETED
    hooks.save()
    assert task.key not in tasks.list_tasks("me")


def test_a_forwarder_without_a_broker_fails_with_a_sentence(hooks: Topology) -> None:
    task = tasks.list_tasks("me")[task_key("wait", hooks.slug)]
    with pytest.raises(Unreachable, match="Nothing listens at"):
        task.run(stop=Event(), beat=lambda details: None)


def test_the_command_names_the_tasks_that_there_are(pair: Topology, hooks: Topology) -> None:
    with pytest.raises(
        CommandError, match=r"called “wait:no”\. Choose one of recorder, wait:hooks"
    ):
        call_command("worker", "--only", "wait:no")
    # What one process does for all hosts has a lease of the whole worker.
    with pytest.raises(CommandError, match="No background task is called “facts”"):
        call_command("worker", "--only", "facts")


def test_what_was_adopted_has_no_forwarder_of_ours(broker: Broker) -> None:
    row = take_over(None, broker, busy_wait.KIND, HOOKS)
    assert task_key("wait", row.slug) not in tasks.list_tasks("me")


def test_the_prediction_counts_on_no_forwarder_of_ours_in_what_was_adopted(broker: Broker) -> None:
    take_over(None, broker, busy_wait.KIND, HOOKS)
    there = busy_wait.definitions(HOOKS) | Definitions.of([a_queue("hooks")])
    found = predict(a_snapshot(there), "", "hooks-delay", forwarders=forwarders_at(broker))
    assert found.queue == "hooks-busy-wait"
    assert "an external consumer" in found.sentence


@pytest.mark.parametrize("consumers", [0, 1])
def test_the_publish_page_predicts_the_arrival_in_the_processing_queue(
    hooks: Topology, consumers: int
) -> None:
    there = busy_wait.definitions(HOOKS) | Definitions.of([a_queue("hooks")])
    numbers = {"hooks-busy-wait": QueueNumbers(consumers=consumers)}
    route = busy_wait.route(HOOKS, 90 * MINUTE, "hooks")
    outgoing = OutgoingMessage(route, b"{}", {"a": 1}, topology=hooks)
    found = predict(
        a_snapshot(there, numbers),
        route.exchange,
        route.routing_key,
        headers={**outgoing.headers, **route.make_headers(1000)},
        forwarders=forwarders_at(hooks.broker),
        now_ms=1000,
    )
    assert route.make_headers(1000) == {"due-at-ms": 1000 + 90 * 60_000}
    assert (found.queue, found.arrives_after) == ("hooks", 90 * MINUTE)
    assert found.sentence == "The message arrives in hooks after 1h 30m."
