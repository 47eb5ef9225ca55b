"""Plan, apply, verify and tear down on a real broker."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from django.core.management import call_command

from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_broker, make_pair
from tests.publishing import publisher
from topology.broker.errors import Conflict
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import Publish
from topology.models import AuditEntry, Drift, State
from topology.operations import provision
from topology.operations.ownership import Refusal
from topology.operations.provision import DriftCheck
from topology.snapshot import Snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


def names(snapshot: Snapshot) -> set[str]:
    own = {e.name for e in snapshot.declared.exchanges if not e.name.startswith("amq.")}
    return own | {q.name for q in snapshot.declared.queues}


def test_a_fresh_plan_creates_everything_and_a_second_one_nothing(
    vhost: Vhost, management: Management
) -> None:
    topology = make_pair(make_broker(vhost))
    before = provision.plan_for(topology, observe(management))
    assert {change.sign for change in before.changes} == {"create"}
    applied = provision.apply(None, topology)
    assert applied.created == len(before.changes)
    after = provision.plan_for(topology, observe(management))
    assert {change.sign for change in after.changes} == {"present"}
    assert provision.apply(None, topology).created == 0


def test_what_was_declared_verifies_and_a_probe_arrives_on_time(vhost: Vhost) -> None:
    topology = applied_pair(vhost, delay="750ms")
    verdict = provision.check(None, topology)
    assert verdict.holds, verdict
    assert verdict.checks[0].sentence == "A probe would arrive in orders after 750ms."


def test_a_missing_binding_is_found_and_applying_again_puts_it_back(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_pair(vhost)
    lost = next(
        b
        for b in topology.definitions.bindings
        if b.source == "orders" and b.destination == "orders"
    )
    management.unbind(lost)
    verdict = provision.check(None, topology)
    assert not verdict.holds
    assert [change.object for change in verdict.plan.select("create")] == [lost]
    assert "has no queue for the key" in verdict.checks[0].sentence
    assert provision.apply(None, topology).created == 1


def test_another_ttl_is_a_conflict_shown_side_by_side_and_nothing_is_changed(
    vhost: Vhost, management: Management
) -> None:
    management.declare_exchange(Exchange("orders"))
    there = Arguments({"x-message-ttl": 9000, "x-dead-letter-exchange": "orders"})
    management.declare_queue(Queue("orders-retry", arguments=there))
    topology = make_pair(make_broker(vhost), delay="500ms")
    plan = provision.plan_for(topology, observe(management))
    (conflict,) = plan.select("conflict")
    assert [(d.name, d.wanted, d.found) for d in conflict.differences] == [
        ("x-message-ttl", "500", "9000")
    ]
    with pytest.raises(Refusal, match="Delayboard changed nothing"):
        provision.apply(None, topology)
    assert names(observe(management)) == {"orders", "orders-retry"}
    failed = AuditEntry.objects.get(action="topology applied")
    assert failed.outcome.startswith("failed")


def test_an_apply_that_dies_half_way_is_completed_by_applying_again(
    vhost: Vhost, management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = make_pair(make_broker(vhost))

    def die(self: Management, queue: Queue) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Management, "declare_queue", die)
        with pytest.raises(KeyboardInterrupt):
            provision.apply(None, topology)
    assert names(observe(management)) == {"orders", "orders-retry"}
    topology.refresh_from_db()
    assert topology.state == State.APPLYING
    provision.apply(None, topology)
    assert provision.plan_for(topology, observe(management)).is_empty
    provision.remove(None, topology)
    assert names(observe(management)) == set()


def test_teardown_deletes_only_what_the_plan_created(vhost: Vhost, management: Management) -> None:
    management.declare_exchange(Exchange("orders"))
    topology = applied_pair(vhost)
    done = provision.remove(None, topology)
    assert names(observe(management)) == {"orders"}
    assert [obj.identity for obj in done.keeps] == [("exchange", "orders")]
    topology.refresh_from_db()
    assert topology.state == State.DELETED


def test_teardown_is_refused_while_another_queue_is_bound_and_deletes_all_once_it_is_not(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_pair(vhost)
    management.declare_queue(Queue("audit"))
    foreign = Binding("orders", "audit", "orders")
    management.bind(foreign)
    with pytest.raises(Refusal, match="The queue “audit” is bound to the exchange “orders” with"):
        provision.remove(None, topology, typed_name="orders")
    assert provision.plan_for(topology, observe(management)).is_empty
    management.unbind(foreign)
    provision.remove(None, topology)
    assert names(observe(management)) == {"audit"}
    assert topology.owned == []


def test_teardown_is_refused_over_messages_until_the_name_is_typed(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_pair(vhost, delay="1h")
    with publisher(address_of(vhost), "test") as channel:
        for _ in range(3):
            properties = build_properties(delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", properties, b"{}"))

    def counted() -> bool:
        return observe(management).numbers["orders-retry"].messages == 3

    eventually(counted, "the statistics show three messages")
    with pytest.raises(Refusal, match=r"3 messages .* the last leaves it"):
        provision.remove(None, topology)
    assert "orders-retry" in names(observe(management))
    provision.remove(None, topology, typed_name="orders")
    assert names(observe(management)) == set()


def test_the_broker_itself_keeps_a_queue_that_filled_since_the_last_statistics(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_pair(vhost, delay="1h")
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("orders-retry", "orders", build_properties(), b"{}"))
        with pytest.raises((Conflict, Refusal)):
            provision.remove(None, topology)
    assert "orders-retry" in names(observe(management))


def exit_code(*arguments: str) -> int:
    try:
        call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO())
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_commands_are_a_gate_from_the_first_plan_to_the_teardown(
    vhost: Vhost, management: Management
) -> None:
    slug = make_pair(make_broker(vhost)).slug
    assert exit_code("plan", slug) == 1
    assert exit_code("apply", slug) == exit_code("plan", slug) == exit_code("verify", slug) == 0
    management.delete_queue("orders-retry", only_if_empty=False)
    assert exit_code("plan", slug) == exit_code("verify", slug) == 1
    assert exit_code("apply", slug) == exit_code("plan", slug) == 0
    assert exit_code("teardown", slug, "--dry-run") == exit_code("teardown", slug) == 0
    assert "orders" not in names(observe(management))


def test_a_drift_is_restored_by_its_plan_and_bindings_of_others_are_kept(
    vhost: Vhost, management: Management
) -> None:
    topology = applied_pair(vhost)
    management.declare_queue(Queue("audit"))
    others = Binding("orders", "audit", "orders")
    management.bind(others)
    management.delete_queue("orders-retry", only_if_empty=False)
    check = DriftCheck()
    assert check.update_rows(topology.broker, observe(management)) == 1
    assert "objects are missing since" in topology.drift.sentence
    provision.apply(None, topology)
    assert not Drift.objects.exists()
    after = observe(management)
    assert check.update_rows(topology.broker, after) == 0
    assert after.declared.get(others.identity) is not None
