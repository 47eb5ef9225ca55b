"""`manage.py plan|apply|verify|teardown`: exit codes and output."""

from __future__ import annotations

import json
import re

import pytest
import responses

from tests.builders import make_broker, make_pair
from tests.commands import run
from tests.topology.test_provision import broker_says, owned_pair, takes_changes
from topology.definitions import Arguments, Binding, Queue
from topology.models import AuditEntry, State, Topology
from topology.operations import provision

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _depths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer nothing by AMQP, which stands in no mock of the API."""
    monkeypatch.setattr(provision, "live_depths", lambda address, queues: {})


def changes_of_broker() -> int:
    return sum(call.request.method != "GET" for call in responses.calls)


@responses.activate
def test_a_plan_fails_until_the_topology_is_applied_and_in_sync() -> None:
    topology = make_pair(make_broker())
    broker_says()
    code, text, _ = run("plan", topology.slug)
    assert code == 1
    assert "+ classic queue orders-retry, TTL 500ms\n" in text
    assert re.search(r"(\d+) objects: \1 to create, 0 in conflict, 0 in sync", text)
    responses.reset()
    broker_says(topology)
    code, text, _ = run("plan", topology.slug)
    assert code == 1
    assert text.endswith("The topology is not applied.\n")
    Topology.objects.update(state=State.APPLIED)
    code, text, _ = run("plan", topology.slug)
    assert code == 0
    assert changes_of_broker() == 0


@responses.activate
def test_without_its_tap_an_exported_topology_is_in_sync() -> None:
    topology = make_pair(make_broker())
    broker_says(others=tuple(topology.pattern.definitions(topology.parsed)))
    code, text, _ = run("plan", topology.slug)
    assert code == 1
    assert "Only Delayboard's own objects are missing. --without-tap leaves them out.\n" in text
    code, text, _ = run("plan", topology.slug, "--without-tap")
    assert code == 0
    assert "delayboard.tap" not in text
    responses.reset()
    broker_says()
    assert run("plan", topology.slug, "--without-tap").code == 1


@responses.activate
def test_a_conflict_is_shown_argument_by_argument_and_refused() -> None:
    topology = make_pair(make_broker())
    other = Queue("orders-retry", arguments=Arguments({"x-message-ttl": 7}))
    broker_says(others=(other,))
    code, text, _ = run("plan", topology.slug)
    assert code == 1
    assert "≠ classic queue orders-retry, TTL 500ms\n" in text
    assert "    x-message-ttl: planned 500, in the broker 7\n" in text
    assert run("apply", topology.slug, "--dry-run")[0] == 1
    code, _, errors = run("apply", topology.slug)
    assert code == 1
    assert errors == ("The plan conflicts with existing objects. Delayboard changed nothing.\n")
    assert changes_of_broker() == 0


@responses.activate
def test_a_dry_run_of_apply_changes_nothing_and_apply_creates() -> None:
    topology = make_pair(make_broker())
    broker_says()
    takes_changes()
    code, text, _ = run("apply", topology.slug, "--dry-run")
    assert (code, changes_of_broker()) == (0, 0)
    assert text.endswith("Dry run: Delayboard changed nothing.\n")
    code, text, _ = run("apply", topology.slug, "--json")
    assert code == 0
    answer = json.loads(text)
    assert (answer["topology"], answer["state"]) == (topology.slug, "applied")
    assert answer["created"] == len(answer["changes"]) > 0
    assert AuditEntry.objects.filter(action="topology applied", outcome="done").exists()


@responses.activate
def test_verify_names_each_check_and_fails_with_one_that_does_not_hold() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology)
    code, text, _ = run("verify", topology.slug)
    assert code == 0, text
    assert "ok: A probe would arrive in orders after 500ms.\n" in text
    responses.reset()
    broker_says()
    code, text, _ = run("verify", topology.slug, "--json")
    assert code == 1
    assert {one["holds"] for one in json.loads(text)["checks"]} == {False}


@responses.activate
def test_a_teardown_is_refused_over_messages_and_done_with_the_name() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology, messages=2)
    takes_changes()
    code, text, _ = run("teardown", topology.slug, "--dry-run")
    assert code == 1
    assert "- classic queue orders-retry\n" in text
    assert "The topology holds 4 messages" in text
    assert changes_of_broker() == 0
    code, _, errors = run("teardown", topology.slug)
    assert code == 1
    assert errors.startswith("The topology holds 4 messages")
    assert run("teardown", topology.slug, "--dry-run", "--confirm", "orders")[0] == 0
    assert changes_of_broker() == 0
    code, text, _ = run("teardown", topology.slug, "--confirm", "orders", "--json")
    assert (code, json.loads(text)["state"]) == (0, "deleted")
    assert run("teardown", topology.slug)[:2] == (0, "The topology is already deleted.\n")
    code, _, errors = run("apply", topology.slug)
    assert (code, errors) == (
        2,
        "The topology “orders” is deleted. Create a new topology.\n",
    )


@responses.activate
def test_a_dry_run_of_teardown_names_what_others_bound() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology, others=(Queue("audit"), Binding("orders", "audit", "")))
    code, text, _ = run("teardown", topology.slug, "--dry-run", "--json")
    answer = json.loads(text)
    assert code == 1
    assert "The queue “audit” is bound to the exchange “orders”" in answer["refusal"]


@pytest.mark.parametrize("command", ["plan", "apply", "verify", "teardown"])
def test_an_unknown_topology_and_a_silent_broker_are_no_answer(command: str) -> None:
    topology = make_pair(make_broker())
    code, text, errors = run(command, "nobody")
    assert (code, text) == (2, "")
    assert errors == "The topology “nobody” does not exist. Existing topologies: orders.\n"
    code, text, errors = run(command, topology.slug, "--json")
    assert code == 2
    assert "Nothing listens at" in json.loads(text)["error"]
    assert errors.count("\n") == 1
