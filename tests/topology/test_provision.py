"""What an operator does with topologies, written down; the broker stands at the network's edge."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
import responses
from django.db import connection
from django.db.models import F
from django.utils import timezone

from tests.builders import make_broker, make_pair, make_user
from tests.topology.builders import NOON, a_snapshot
from topology import snapshots
from topology.broker.errors import Unreachable
from topology.broker.management.client import Management
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.models import AuditEntry, Broker, Role, State, Topology, Work
from topology.operations import edit_topology, provision
from topology.operations.ownership import Refusal, alone_with, own, own_declared
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.params import level_name
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.quorum_retry import params as quorum_retry_params
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.teardown import Occupied, Teardown
from topology.snapshot import QueueNumbers

pytestmark = pytest.mark.django_db

API = "http://127.0.0.1:9/api"

PARAMS = retry_pair_params.Params("orders", timedelta(seconds=5))


def broker_says(
    topology: Topology | None = None, *, messages: int = 0, others: tuple[BrokerObject, ...] = ()
) -> None:
    """The management API of a vhost in which nothing stands, or all of a topology."""
    objects = [*(topology.definitions if topology else []), *others]
    queues: list[dict[str, Any]] = []
    exchanges: list[dict[str, Any]] = []
    bindings: list[dict[str, Any]] = []
    for obj in objects:
        if isinstance(obj, Binding):
            bindings.append(
                {
                    "source": obj.source,
                    "destination": obj.destination,
                    "destination_type": "queue",
                    "routing_key": obj.routing_key,
                    "properties_key": obj.routing_key,
                }
            )
        else:
            row = {"name": obj.name, "durable": True, "arguments": dict(obj.arguments)}
            exchanges.append(row | {"type": obj.type}) if isinstance(obj, Exchange) else (
                queues.append(row | {"messages": messages})
            )
    responses.get(f"{API}/overview", json={"rabbitmq_version": "3.10.8"})
    responses.get(f"{API}/queues/nowhere", json=queues)
    responses.get(f"{API}/exchanges/nowhere", json=exchanges)
    responses.get(f"{API}/bindings/nowhere", json=bindings)
    responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the broker counts at once; by AMQP, which stands in no mock of the API."""
    depths: dict[str, int] = {}
    monkeypatch.setattr(provision, "live_depths", lambda address, queues: depths)
    return depths


def takes_changes() -> None:
    for method in ("PUT", "POST", "DELETE"):
        responses.add(method, re.compile(f"{API}/.*"), status=204)
    responses.get(re.compile(f"{API}/bindings/nowhere/e/.*"), json=[])


def last_entry() -> AuditEntry:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry


def test_a_topology_is_written_down_and_nothing_is_asked_of_the_broker() -> None:
    user = make_user("ann", Role.ADMIN)
    broker = make_broker()
    row = create_topology(user, broker, "retry_pair", PARAMS)
    assert (row.state, row.name, row.slug, row.kind) == (
        State.PLANNED,
        "orders",
        "orders",
        "retry_pair",
    )
    assert row.parsed == PARAMS
    assert row.tap_queue == "delayboard.tap.orders"
    assert row.definitions == row.definitions_with("classic")
    assert row.definitions_with("quorum").queue(row.tap_queue) != row.definitions.queue(
        row.tap_queue
    )
    entry = last_entry()
    assert (entry.username, entry.action, entry.what) == ("ann", "topology created", "orders")
    assert entry.details == retry_pair.store(PARAMS)


def test_a_second_of_the_same_name_on_a_broker_is_refused_until_the_first_is_torn_down() -> None:
    broker, other = make_broker(name="one"), make_broker(name="two")
    first = make_pair(broker)
    with pytest.raises(
        Refusal, match="The topology “orders” of this pattern already exists on one"
    ):
        make_pair(broker)
    assert Topology.objects.count() == AuditEntry.objects.count() == 1
    assert make_pair(other).slug.startswith("orders-")
    first.state = State.DELETED
    first.save()
    assert make_pair(broker).slug.startswith("orders-")
    assert Topology.objects.filter(broker=broker).count() == 2


def test_a_second_pattern_of_one_name_says_which_it_is() -> None:
    broker = make_broker()
    pair = make_pair(broker)
    params = delay_queues.parse({"queue": "orders", "delays": "10s, 1m"})
    other = create_topology(None, broker, delay_queues.KIND, params)
    assert (pair.name, other.name, other.title) == ("orders", "orders (Delay queues)", "orders")
    with pytest.raises(Refusal, match="“orders” of this pattern already exists"):
        create_topology(None, broker, delay_queues.KIND, params)
    edited = edit_topology.edit(None, other, {**other.params, "delays": "10s"}, typed_name="")
    assert not edited.refusals


@pytest.mark.django_db(transaction=True)
def test_of_two_that_are_created_at_once_one_is_refused() -> None:
    broker = make_broker()
    barrier = threading.Barrier(2)
    refused: list[str] = []

    def create() -> None:
        try:
            barrier.wait(60)
            make_pair(broker)
        except Refusal as refusal:
            refused.append(str(refusal))
        finally:
            connection.close()

    threads = [threading.Thread(target=create) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (Topology.objects.count(), len(refused)) == (1, 1)


@responses.activate
def test_applying_creates_owns_and_records() -> None:
    user = make_user("ann", Role.ADMIN)
    topology = make_pair(make_broker())
    broker_says()
    takes_changes()
    applied = provision.apply(user, topology)
    assert applied.created == len(topology.definitions) == len(applied.plan.changes)
    assert topology.state == State.APPLIED
    assert topology.applied_at is not None
    assert topology.owned_identities == {obj.identity for obj in topology.definitions}
    assert (last_entry().action, last_entry().outcome) == ("topology applied", "done")


@responses.activate
def test_what_was_there_before_is_not_owned() -> None:
    topology = make_pair(make_broker())
    broker_says(topology)
    assert provision.apply(None, topology).created == 0
    assert topology.owned_identities == frozenset()


@responses.activate
def test_an_apply_that_fails_half_way_owns_what_it_meant_to_create_and_is_recorded() -> None:
    topology = make_pair(make_broker())
    broker_says()
    responses.put(f"{API}/exchanges/nowhere/orders", status=201)
    responses.put(f"{API}/exchanges/nowhere/orders-retry", status=500, json={"reason": "broke"})
    with pytest.raises(Unreachable, match="answered 500: broke"):
        provision.apply(None, topology)
    topology.refresh_from_db()
    assert topology.state == State.APPLYING
    assert len(topology.owned) == len(topology.definitions)
    entry = last_entry()
    assert (entry.action, entry.username) == ("topology applied", "delayboard")
    assert entry.outcome == "failed: The management API answered 500: broke"


def test_an_unreachable_broker_is_an_error_that_is_recorded_without_a_secret() -> None:
    topology = make_pair(make_broker())
    for act in (provision.apply, provision.check, provision.remove):
        with pytest.raises(Unreachable, match="Nothing listens at"):
            act(None, topology)
        entry = last_entry()
        assert entry.outcome.startswith("failed: Nothing listens at http://127.0.0.1:9")
        sealed = topology.broker.sealed_password
        for secret in ("guest:guest", sealed, '"guest"'):
            assert secret not in f"{entry.outcome} {entry.what} {entry.details}"


@responses.activate
def test_a_check_verifies_and_records() -> None:
    topology = make_pair(make_broker())
    broker_says(topology)
    verdict = provision.check(None, topology)
    assert verdict.plan.is_empty
    assert last_entry().action == "topology verified"


def owned_pair(broker: Broker) -> Topology:
    topology = make_pair(broker)
    topology.own([obj.identity for obj in topology.definitions])
    topology.state = State.APPLIED
    topology.save()
    return topology


@responses.activate
def test_a_teardown_over_messages_is_refused_and_recorded_until_the_name_is_typed() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology, messages=2)
    takes_changes()
    with pytest.raises(Refusal, match="The topology holds 4 messages"):
        provision.remove(None, topology, typed_name="order")
    assert last_entry().outcome.startswith("failed: The topology holds 4 messages")
    provision.remove(None, topology, typed_name="orders")
    topology.refresh_from_db()
    assert (topology.state, topology.owned) == (State.DELETED, [])
    assert last_entry().details == {"even_with_messages": True}


@responses.activate
def test_on_production_a_teardown_asks_for_the_name_even_when_it_is_empty() -> None:
    broker = make_broker()
    broker.is_production = True
    broker.save()
    topology = owned_pair(broker)
    broker_says(topology)
    takes_changes()
    with pytest.raises(Refusal, match=r"production broker\. Type the topology name"):
        provision.remove(None, topology)
    assert Topology.objects.get().state == State.APPLIED
    assert len(provision.remove(None, topology, typed_name="orders").deletes) > 0


@responses.activate
def test_a_teardown_that_fails_can_be_done_again() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology)
    responses.delete(f"{API}/queues/nowhere/orders-retry", status=500, json={})
    with pytest.raises(Unreachable):
        provision.remove(None, topology)
    topology.refresh_from_db()
    assert topology.state == State.APPLIED
    assert topology.owned


@responses.activate
def test_a_teardown_disowns_what_it_deleted_and_nothing_else() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology)
    responses.delete(f"{API}/queues/nowhere/orders-retry", status=204)
    responses.delete(re.compile(f"{API}/queues/.*"), status=500, json={})
    owned = topology.owned_identities
    with pytest.raises(Unreachable):
        provision.remove(None, topology)
    topology.refresh_from_db()
    assert owned - topology.owned_identities == {("queue", "orders-retry")}
    elsewhere = ("queue", "of an older plan")
    topology.own([elsewhere])
    topology.save()
    responses.reset()
    broker_says(others=tuple(topology.definitions.without([("queue", "orders-retry")])))
    takes_changes()
    provision.remove(None, topology)
    assert topology.state == State.DELETED
    assert topology.owned_identities == {elsewhere}


@responses.activate
def test_a_teardown_under_which_others_are_bound_is_refused_even_by_name() -> None:
    topology = owned_pair(make_broker())
    broker_says(topology, others=(Queue("audit"), Binding("orders", "audit", "")))
    with pytest.raises(Refusal, match="The queue “audit” is bound to the exchange “orders”"):
        provision.remove(None, topology, typed_name="orders")
    assert {call.request.method for call in responses.calls} == {"GET"}
    topology.refresh_from_db()
    assert (topology.state, bool(topology.owned)) == (State.APPLIED, True)


@responses.activate
def test_what_was_torn_down_is_not_applied_again() -> None:
    topology = make_pair(make_broker())
    topology.state = State.DELETED
    topology.save()
    with pytest.raises(Refusal, match="This topology is deleted"):
        provision.apply(None, topology)
    assert len(responses.calls) == 0
    assert Topology.objects.get().state == State.DELETED


def test_the_sentence_over_messages_says_how_many_where_and_until_when() -> None:
    occupied = (Occupied("orders", 2, None), Occupied("orders-retry", 3, NOON))
    assert provision.describe_occupied(Teardown((), (), occupied)) == (
        "The topology holds 5 messages (2 in orders; 3 in orders-retry, the last leaves it at "
        "2026-11-20 12:00:00 UTC). Drain or park them, or confirm with the name of the topology "
        "to delete them."
    )
    uncounted = provision.describe_occupied(Teardown((), (), (Occupied("orders", None, None),)))
    assert uncounted.startswith(
        "The topology holds an unknown number of messages (an unknown number in orders). "
    )


@responses.activate
def test_a_teardown_sees_what_a_quorum_queue_keeps_back_though_the_listing_is_an_old_one(
    counted: dict[str, int],
) -> None:
    """What waits for its next attempt is not ready, so no declare counts it (RabbitMQ 4.3)."""
    second = timedelta(seconds=1)
    params = quorum_retry_params.Params("orders", "failed", second, second, 5)
    topology = create_topology(make_user("ann", Role.ADMIN), make_broker(), "quorum_retry", params)
    topology.own([obj.identity for obj in topology.definitions])
    topology.state = State.APPLIED
    topology.save()
    broker_says(topology)
    counted |= {queue.name: 0 for queue in topology.definitions.queues}
    for queue in topology.definitions.queues:
        kept = 1 if queue.name == "orders" else 0
        answer = {"messages": kept, "messages_ready": 0, "messages_delayed": kept}
        responses.get(f"{API}/queues/nowhere/{queue.name}", json=answer)
    with pytest.raises(Refusal, match="The topology holds 1 message "):
        provision.remove(None, topology)
    assert {call.request.method for call in responses.calls} == {"GET"}


@responses.activate
def test_a_teardown_goes_by_what_the_broker_counts_at_once(counted: dict[str, int]) -> None:
    """Its statistics are seconds old: they say 0 of a message that was just published."""
    topology = make_pair(make_broker())
    topology.own([obj.identity for obj in topology.definitions])
    topology.save()
    broker_says(topology)
    counted["orders-retry"] = 3
    with pytest.raises(Refusal, match="The topology holds 3 messages"):
        provision.remove(None, topology)


@responses.activate
def test_two_never_apply_or_tear_down_at_once() -> None:
    topology = make_pair(make_broker())
    with alone_with(topology):
        for act in (provision.apply, provision.remove):
            with pytest.raises(Refusal, match="Another process is changing this topology"):
                act(None, topology)
    assert len(responses.calls) == 0
    broker_says()
    takes_changes()
    assert provision.apply(None, topology).created
    assert Work.objects.get().leased_until_at is None


def test_one_who_was_too_slow_does_not_go_on_beside_another() -> None:
    topology = make_pair(make_broker())
    with alone_with(topology) as extend:
        extend()
        Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
        with alone_with(topology), pytest.raises(Refusal, match="Another process changed"):
            extend()


@responses.activate
def test_an_apply_that_was_too_slow_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = make_pair(make_broker())

    def lose_the_claim(self: Management, objects: Iterable[BrokerObject]) -> None:
        Work.objects.update(fence=F("fence") + 1)
        declare(self, objects)

    declare = Management.declare
    monkeypatch.setattr(Management, "declare", lose_the_claim)
    broker_says()
    with pytest.raises(Refusal, match="Another process changed"):
        provision.apply(None, topology)
    assert all(call.request.method == "GET" for call in responses.calls)
    assert Topology.objects.get().state == State.APPLYING


def test_a_route_does_not_disown_what_was_declared_after_it_was_read() -> None:
    topology = make_pair(make_broker())
    own(topology, [("queue", "delay.1000.gone")])
    topology.refresh_from_db()
    own(topology, [("queue", "delay.2000.new")])
    own_declared(topology, Definitions(), Definitions())
    owned = Topology.objects.get().owned_identities
    assert ("queue", "delay.2000.new") in owned
    assert ("queue", "delay.1000.gone") not in owned


def test_an_identity_is_owned_once_and_read_back_as_it_was() -> None:
    topology = make_pair(make_broker())
    identities = [obj.identity for obj in topology.definitions]
    topology.own(identities)
    topology.own(identities[:2])
    topology.save()
    assert Topology.objects.get().owned_identities == frozenset(identities)


@pytest.mark.parametrize("counted", [0, 3], ids=["burst", "stuck"])
def test_a_burst_that_expires_at_one_moment_is_not_reported_as_stuck(
    monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    params = delay_levels_params.Params("own", "shop", 3)
    levels = create_topology(None, make_broker(), delay_levels.KIND, params)
    numbers = {queue.name: QueueNumbers(0, 0, 0, 0) for queue in levels.definitions.queues}
    lowest = level_name(params, 0)
    numbers[lowest] = QueueNumbers(messages=3, ready=0, unacked=0, consumers=0)
    seen = a_snapshot(levels.definitions, numbers)
    newer = {lowest: QueueNumbers(messages=counted, ready=0, unacked=0, consumers=0)}
    monkeypatch.setattr(snapshots, "for_action", lambda *_: seen)
    monkeypatch.setattr(provision, "newest_numbers", lambda *_: newer)
    # A burst is over at the first look, however late that is.
    monkeypatch.setattr(provision, "SETTLE_SECONDS", 0.01 if counted else 60.0)
    monkeypatch.setattr(provision, "CHECK_AGAIN_SECONDS", 0.01)
    failed = [check.sentence for check in provision.check(None, levels).checks if not check.holds]
    assert any("stuck" in sentence for sentence in failed) == bool(counted)
