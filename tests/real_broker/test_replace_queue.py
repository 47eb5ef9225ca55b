"""Replacing a queue under traffic: no message is lost, doubled or hurried, whatever is killed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from threading import Event

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_pair, applied_topology, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.replacing import (
    TTL_MS,
    Drifted,
    assert_as_defined,
    assert_none_lost_doubled_or_hurried,
    make_drifted,
    make_edited,
    traffic,
)
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Definitions, Queue
from topology.message import Publish
from topology.models import Broker, QueueReplacement, ReplacementStep, Work, WorkState
from topology.operations import provision, replace_queue
from topology.operations.edit_topology import edit
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_queues import params as delay_queues
from topology.patterns.retry_ladder import params as retry_ladder

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replace_queue, "REPORTED", timedelta(seconds=1.5))
    monkeypatch.setattr(replace_queue, "REPORTED_BY_QUORUM", timedelta(seconds=1.5))


class Died(BaseException):
    """In place of a kill: nothing after it."""


def attend(own: Work, steps: int = 10**6, *, obstacle: str = "") -> bool:
    """Work on it, and die before a step; whether it came so far."""
    Work.objects.update(leased_until_at=Now(), not_before_at=None)
    claimed = work.claim_this(Work.objects.get(pk=own.pk), "test")
    assert claimed is not None
    left = steps

    def alive() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died

    try:
        work.attempt(replace_queue.attend, claimed, stop=Event(), alive=alive)
    except Died:
        return True
    own.refresh_from_db()
    # A busy broker may take longer than a connection waits; the worker tries again too.
    assert own.error == obstacle or "did not answer" in own.error
    return False


def finish(row: QueueReplacement) -> None:
    def is_done() -> bool:
        attend(row.work)
        return row.work.state == WorkState.DONE

    eventually(is_done, "the queue is replaced", seconds=60)


@pytest.mark.usefixtures("least_account")
@pytest.mark.parametrize("why", ["drift", "edit"])
def test_a_queue_is_replaced_under_traffic_with_a_kill_before_each_step(
    vhost: Vhost, why: str
) -> None:
    drifted = make_drifted(vhost, "classic") if why == "drift" else make_edited(vhost)
    died: dict[str, int] = {}
    with traffic(drifted) as seen:
        eventually(lambda: len(seen.arrived) > 20, "traffic")
        if why == "drift":
            assert replace_queue.request(None, drifted.topology) == [drifted.queue]
        else:
            edit(None, drifted.topology, {"name": "orders", "delay": f"{TTL_MS}ms"})
        row = QueueReplacement.objects.get()

        def is_done() -> bool:
            row.refresh_from_db()
            steps = died.setdefault(row.step, 0)
            if attend(row.work, steps):
                died[row.step] += 1
            return row.work.state == WorkState.DONE

        eventually(is_done, "the queue is replaced", seconds=120)
    assert_none_lost_doubled_or_hurried(drifted, seen)
    assert_as_defined(drifted)
    assert set(died) == set(ReplacementStep.values) - {ReplacementStep.REROUTING}
    assert died[ReplacementStep.SWITCHING] > 8
    assert died[ReplacementStep.RETURNING] > 4


def declare_other(management: Management, **arguments: str | int) -> None:
    management.delete_queue("orders-retry", only_if_empty=False)
    stated = {"x-queue-type": "classic", "x-dead-letter-exchange": "orders", **arguments}
    management.declare_queue(Queue("orders-retry", arguments=Arguments(stated)))
    management.bind(Binding("orders-retry", "orders-retry", "orders"))


def wait_one(vhost: Vhost, management: Management) -> None:
    with publisher(address_of(vhost), "test") as channel:
        properties = build_properties({}, delivery_mode=2)
        channel.publish(Publish("orders-retry", "orders", properties, b"{}"))
    eventually(lambda: management.queue("orders-retry").get("messages") == 1, "it is reported")


def test_messages_that_would_go_astray_are_a_reason_to_refuse(vhost: Vhost) -> None:
    topology = applied_pair(vhost, delay="30s")
    with Management(address_of(vhost)) as management:
        elsewhere: dict[str, str | int] = {
            "x-message-ttl": 60_000,
            "x-dead-letter-exchange": "elsewhere",
        }
        declare_other(management, **elsewhere)
        wait_one(vhost, management)
        with pytest.raises(Refusal, match="to the exchange “elsewhere” instead of"):
            replace_queue.request(None, topology)
        assert not QueueReplacement.objects.exists()


def test_the_commands_preview_and_request_it_and_nothing_else_is_done_meanwhile(
    vhost: Vhost,
) -> None:
    topology = applied_pair(vhost, delay="2s")
    with Management(address_of(vhost)) as management:
        declare_other(management, **{"x-message-ttl": 1000})
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("plan", topology.slug, stdout=out)
    assert "“orders-retry” can be replaced:" in out.getvalue()
    call_command("apply", topology.slug, "--replace", stdout=out)
    assert "Replacement requested for orders-retry." in out.getvalue()
    row = QueueReplacement.objects.get()
    for act in (provision.apply, provision.remove, replace_queue.request):
        with pytest.raises(Refusal, match="in progress: “orders-retry”"):
            act(None, topology)
    finish(row)
    assert provision.preview_plan(topology)[0].is_empty
    provision.remove(None, topology)


def test_a_queue_with_a_consumer_is_not_deleted(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quorum queue would be deleted under its consumer: it does not support if-unused."""
    monkeypatch.setattr(replace_queue, "REPORTED_BY_QUORUM", timedelta(0))
    drifted = make_drifted(vhost, "quorum")
    replace_queue.request(None, drifted.topology)
    row = QueueReplacement.objects.get()
    obstacle = f"“{drifted.queue}” has consumers, and messages leave it early. Stop them."

    with Management(address_of(vhost)) as management:

        def is_consumed() -> bool:
            return bool(management.queue(drifted.queue).get("consumers"))

        with Consumer(address_of(vhost), drifted.queue):
            eventually(is_consumed, "the consumer is reported")
            attend(row.work, obstacle=obstacle)
            assert management.queue(drifted.queue)["type"] == "quorum"
        eventually(lambda: not is_consumed(), "its end is reported")
    finish(row)
    assert_as_defined(drifted)


def test_an_old_queue_that_comes_back_meanwhile_is_replaced_too(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that declares what it knows, and binds it, at its start."""
    drifted = make_drifted(vhost, "quorum")
    replace_queue.request(None, drifted.topology)
    row = QueueReplacement.objects.get()
    whole, comes_back = Management.delete_queue, True

    def delete_queue(self: Management, name: str, **conditions: bool) -> None:
        nonlocal comes_back
        old = self.queue(name)
        whole(self, name, **conditions)
        if name == drifted.queue and comes_back:
            comes_back = False
            self.declare_queue(Queue(name, arguments=Arguments(old["arguments"])))
            self.bind(Binding(drifted.exchange, name, drifted.key))

    monkeypatch.setattr(Management, "delete_queue", delete_queue)
    finish(row)
    assert not comes_back
    assert_as_defined(drifted)


def test_policies_that_hold_for_one_of_the_two_queues_are_a_reason_to_refuse(
    vhost: Vhost,
) -> None:
    topology = applied_pair(vhost, delay="2s")
    with Management(address_of(vhost)) as management:
        declare_other(management, **{"x-message-ttl": 1000})
        policy = {"pattern": "-retry$", "definition": {"max-length": 5}, "apply-to": "queues"}
        management._call("PUT", f"/api/policies/{vhost.name}/short", policy)
        with pytest.raises(Refusal, match="Policies set other arguments"):
            replace_queue.request(None, topology)


def test_a_broker_that_fails_is_shown_and_asked_again(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    drifted = make_drifted(vhost, "quorum")
    replace_queue.request(None, drifted.topology)
    row = QueueReplacement.objects.get()

    def fail(*args: object) -> None:
        raise BrokerError("The broker is away.")

    with monkeypatch.context() as patch:
        patch.setattr(replace_queue, "switch_to", fail)
        claimed = work.claim_this(row.work, "test")
        assert claimed is not None
        work.attempt(replace_queue.attend, claimed, stop=Event())
    row.work.refresh_from_db()
    assert (row.work.state, row.work.error) == (WorkState.WAITING, "The broker is away.")
    finish(row)
    assert_as_defined(drifted)


@every_generation
def test_a_ladder_gets_a_rung_under_traffic_with_a_kill_before_each_step_and_loses_it(
    vhost: Vhost,
) -> None:
    """Each message of the key is either parked or waits in the new rung."""
    params = retry_ladder.parse({"name": "orders", "delays": "50ms, 100ms"})
    made = create_topology(None, make_broker(vhost), retry_ladder.KIND, params)
    topology = applied_topology(made)
    with Management(address_of(vhost)) as management:
        # What is parked comes to the queue that the traffic reads.
        back = {"message-ttl": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "orders"}
        policy = {"pattern": "^orders-parking$", "definition": back, "apply-to": "queues"}
        management._call("PUT", f"/api/policies/{vhost.name}/back", policy)
        parking, rung = "orders-parking", "orders-rung-3"
        way = ("orders-ladder", "orders.try.2", "orders")
        with traffic(Drifted(topology, vhost, parking, *way, Definitions())) as seen:
            eventually(lambda: len(seen.arrived) > 20, "traffic")
            edit(None, topology, {"name": "orders", "delays": "50ms, 100ms, 200ms"})
            row = QueueReplacement.objects.get()
            # Once a binding is gone, there are fewer changes before the next one.
            for steps in (*range(7), 3, 4, 4, 5, 5):
                assert attend(row.work, steps)
            finish(row)
            eventually(lambda: rung in {queue for *_, queue in seen.arrived}, "it takes the rung")
        assert sorted(number for number, *_ in seen.arrived) == sorted(seen.published)
        assert {queue for *_, queue in seen.arrived} == {parking, rung}
        topology.refresh_from_db()
        assert provision.preview_plan(topology)[0].is_empty
        edit(None, topology, {"name": "orders", "delays": "50ms, 100ms"})
        rerouting, removing = QueueReplacement.open_of(topology)
        # The removal waits for the other, in whichever order they are done.
        obstacle = f"“{rung}” still receives messages from “orders-ladder”."
        attend(removing.work, obstacle=obstacle)
        assert management.queue(rung)
        finish(rerouting)
        finish(removing)
        declared = observe(management).declared
    assert declared.queue(rung) is None
    assert not [one.name for one in declared.exchanges if "rerouting" in one.name]
    topology.refresh_from_db()
    assert provision.preview_plan(topology)[0].is_empty
    provision.remove(None, topology, typed_name=topology.name)


def test_a_delay_that_is_no_longer_offered_loses_its_queue_when_it_is_empty(vhost: Vhost) -> None:
    params = delay_queues.parse({"queue": "work", "delays": "1s, 4s"})
    made = create_topology(None, make_broker(vhost), delay_queues.KIND, params)
    topology = applied_topology(made)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
        with publisher(address_of(vhost), "test") as channel:
            properties = build_properties({}, delivery_mode=2)
            sent_at = datetime.now(UTC)
            channel.publish(Publish("", "work_dlq_4", properties, b"{}"))
        out = StringIO()
        call_command("edit", topology.slug, "delays=1s, 9s", "--dry-run", stdout=out)
        assert "+ classic queue work_dlq_9" in out.getvalue()
        assert "“work_dlq_4” can be deleted:" in out.getvalue()
        assert not QueueReplacement.objects.exists()
        call_command("edit", topology.slug, "delays=1s, 9s", stdout=out)
        row, died = QueueReplacement.objects.get(), 0

        def is_done() -> bool:
            """With a kill before each step."""
            nonlocal died
            died += attend(row.work, died)
            row.refresh_from_db()
            return row.work.state == WorkState.DONE

        eventually(is_done, "the queue is deleted")
        assert datetime.now(UTC) - sent_at > timedelta(seconds=4)
        eventually(lambda: management.queue("work").get("messages") == 1, "it has arrived")

        def is_deleted() -> bool:
            """A busy broker may list what it deleted some seconds ago."""
            names = {queue.name for queue in observe(management).declared.queues}
            return names == {"work", "work_dlq_1", "work_dlq_9"}

        eventually(is_deleted, "the queue is deleted and no other")
    topology.refresh_from_db()
    assert ("queue", "work_dlq_4") not in topology.owned_identities
    assert provision.preview_plan(topology)[0].is_empty


def test_read_only_stops_a_replacement_only_before_its_first_step(vhost: Vhost) -> None:
    drifted = make_drifted(vhost, "classic")
    replace_queue.request(None, drifted.topology)
    row = QueueReplacement.objects.get()
    broker = drifted.topology.broker
    with Management(broker.address) as management:
        before = observe(management).declared
        Broker.objects.update(is_read_only=True)
        attend(row.work, obstacle=f"{broker.name} is read-only. An administrator can end this.")
        assert observe(management).declared == before
    Broker.objects.update(is_read_only=False)
    # It dies within the first step, which is the second one's to repeat.
    assert attend(row.work, 3)
    row.refresh_from_db()
    assert row.step == ReplacementStep.SWITCHING
    Broker.objects.update(is_read_only=True)
    finish(row)
    assert_as_defined(drifted)
