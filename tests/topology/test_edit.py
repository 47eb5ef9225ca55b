"""What other parameters change, and the sentence for each change that is refused."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from tests.builders import make_broker, make_pair
from tests.commands import run
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Queue
from topology.models import Broker, State, Topology
from topology.operations.edit_topology import preview_edit
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait import params as busy_wait
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import delay_chain
from topology.patterns.table import PATTERNS
from topology.provisioning.edit import Edit, plan_edit
from topology.provisioning.plan import make_plan
from topology.provisioning.replacement import plan_replacements
from topology.snapshot import QueueNumbers
from topology.structure.find_chains import make_chain

NONE = QueueNumbers(messages=0, consumers=0)
ONE = QueueNumbers(messages=1, consumers=0)


def edit(
    kind: str,
    old: dict[str, str],
    new: dict[str, str],
    *others: BrokerObject,
    numbers: QueueNumbers = NONE,
    owns: bool = True,
) -> Edit:
    pattern = PATTERNS[kind]
    before, after = (pattern.definitions(pattern.parse(texts)) for texts in (old, {**old, **new}))
    there = before | Definitions.of(others)
    snapshot = a_snapshot(there, {queue.name: numbers for queue in there.queues})
    kept = {obj.identity for obj in others if isinstance(obj, Binding)}
    owned = {obj.identity for obj in before} | kept if owns else set()
    plan = make_plan(after, snapshot)
    found = plan_replacements(plan, owned, snapshot)
    return plan_edit(before, plan, found, owned, snapshot)


DELAYS = {"queue": "work", "delays": "10s, 1m"}
LEVELS = {"preset": "own", "prefix": "shop", "levels": "3", "unit": "1s", "queue_type": "quorum"}
LADDER = {"name": "orders", "delays": "10s, 1m"}
PAIR = {"name": "orders", "delay": "5s"}


def test_another_delay_replaces_the_queue() -> None:
    found = edit("retry_pair", {"name": "orders", "delay": "5s"}, {"delay": "9s"}, numbers=ONE)
    assert found.refusals == ()
    assert [one.queue.name for one in found.queues] == ["orders-retry"]
    assert found.outcome == "The worker replaces or deletes orders-retry."


def test_delays_on_offer_are_created_and_deleted() -> None:
    found = edit("delay_queues", DELAYS, {"delays": "10s, 2m"}, numbers=ONE)
    assert [change.object.identity for change in found.plan.changes] == [("queue", "work_dlq_120")]
    (removal,) = found.removals
    assert removal.refusal == ""
    assert removal.steps[0].startswith("Stop publishing to “work_dlq_60”.")
    assert "RabbitMQ dead-letters 1 message, the last at" in removal.steps[1]
    assert edit("delay_queues", DELAYS, {"delays": "10s"}, owns=False).queues == ()


@pytest.mark.parametrize("new", [{"queue_type": "classic"}, {"unit": "2s"}])
def test_a_chain_takes_another_type_and_no_other_delays(new: dict[str, str]) -> None:
    found = edit("delay_levels", LEVELS, new)
    assert len(found.replacements) == 3
    wrong = "so another delay would deliver them early or late"
    assert any(wrong in refusal for refusal in found.refusals) is ("unit" in new)


def test_rungs_take_other_delays_and_another_number() -> None:
    assert edit("retry_ladder", LADDER, {"delays": "5s, 2m"}).refusals == ()
    more = edit("retry_ladder", LADDER, {"delays": "10s, 1m, 5m"}, numbers=ONE)
    assert (more.refusals, more.kept, more.removals) == ((), (), ())
    (reroute,) = more.reroutes
    rerouted = ["orders-ladder", "orders.try.2", "orders-rung-3"]
    assert (reroute.stored, reroute.old) == (rerouted, "orders-parking")
    created = [change.object for change in more.plan.changes]
    assert Binding("orders-ladder", "orders-parking", "orders.try.3") in created
    # Both at once would double a message.
    assert reroute.binding not in created
    fewer = edit("retry_ladder", LADDER, {"delays": "10s"}, numbers=ONE)
    assert [(one.old, one.stored[2]) for one in fewer.reroutes] == [
        ("orders-rung-2", "orders-parking")
    ]
    assert [one.queue.name for one in fewer.queues] == ["orders-rung-2"]
    # What waits in the last rung still finds its way.
    assert {one.routing_key for one in fewer.kept} == {"orders.try.2"}
    assert fewer.refusals == ()


def test_a_binding_that_an_earlier_edit_kept_is_switched_too() -> None:
    fewer = edit("retry_ladder", LADDER, {"delays": "10s"})
    one, three = {**LADDER, "delays": "10s"}, {"delays": "10s, 1m, 5m"}
    again = edit("retry_ladder", one, three, *fewer.kept)
    assert again.refusals == ()
    assert {(one.stored[1], one.old, one.stored[2]) for one in again.reroutes} == {
        ("orders.try.1", "orders-parking", "orders-rung-2"),
        ("orders.try.2", "orders-parking", "orders-rung-3"),
    }
    rerouted = {one.binding for one in again.reroutes}
    assert not rerouted & {change.object for change in again.plan.changes}
    old = {"name": "later", "type": "direct", "queues": "k=work"}
    kept = Binding("later", "bills", "b")
    found = edit("delayed_exchange", old, {"queues": "k=work b=books b=cards"}, kept)
    assert any("would be lost or doubled" in refusal for refusal in found.refusals)


def test_a_foreign_binding_is_not_switched() -> None:
    (refusal,) = edit("retry_ladder", LADDER, {"delays": "10s, 1m, 5m"}, owns=False).refusals
    assert "orders-parking with key orders.try.2, which Delayboard did not create" in refusal


def test_rungs_are_removed_one_at_a_time() -> None:
    three = {**LADDER, "delays": "10s, 1m, 5m"}
    (refusal,) = edit("retry_ladder", three, {"delays": "10s"}).refusals
    assert "orders-rung-3 with key orders.try.2" in refusal
    assert "Edit in smaller steps" in refusal


def test_another_key_is_bound_beside_the_former_one() -> None:
    found = edit("retry_pair", PAIR, {"routing_key": "other"}, numbers=ONE)
    assert found.refusals == ()
    assert {change.object.identity for change in found.plan.changes} == {
        Binding("orders", "orders", "other").identity,
        Binding("orders-retry", "orders-retry", "other").identity,
    }
    assert {one.routing_key for one in found.kept} == {"orders"}
    assert found.kept_sentences[0].startswith("The binding from orders to queue orders with key")


def test_a_key_that_leads_to_more_queues_than_before_is_refused() -> None:
    old = {"name": "later", "type": "direct", "queues": "k=work"}
    found = edit("delayed_exchange", old, {"queues": "k=bills k=books"})
    assert any("would be lost or doubled" in refusal for refusal in found.refusals)


def test_an_exchange_stays() -> None:
    found = edit("retry_pair", PAIR, {"name": "bills"})
    assert "would remove the direct exchange orders" in found.refusals[0]


@pytest.mark.parametrize(
    ("other", "numbers", "why"),
    [
        (a_queue("x", ttl=1, dlx="", key="work_dlq_60"), NONE, "receives messages from “x”"),
        (None, QueueNumbers(messages=0, consumers=1), "Consumers of “work_dlq_60” take"),
    ],
)
def test_a_queue_that_is_in_use_stays(other: Queue | None, numbers: QueueNumbers, why: str) -> None:
    others = (other,) if other else ()
    (refusal,) = edit("delay_queues", DELAYS, {"delays": "10s"}, *others, numbers=numbers).refusals
    assert why in refusal


def test_an_object_of_others_in_the_way_is_named() -> None:
    taken = Queue("work_dlq_120", durable=False)
    (refusal,) = edit("delay_queues", DELAYS, {"delays": "10s, 1m, 2m"}, taken).refusals
    assert "did not create “work_dlq_120”" in refusal


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (["delay=soon"], 2, "delay: “soon” is not a duration."),
        (["delay"], 2, "Write NAME=VALUE with one of: name, delay, routing_key, queue_type."),
        (["speed=1"], 2, "“speed=1” is not a parameter of this topology."),
        (["name=bills"], 1, "The topology would be named “bills”"),
        (["delay=500ms"], 1, "The parameters are the same as before."),
        (["routing_key=" + "k" * 300], 2, "A routing key has at most 255 bytes."),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    given: list[str], code: int, why: str
) -> None:
    pair = make_pair(make_broker())
    before = pair.params
    ended = run("edit", pair.slug, *given, "--json")
    assert ended.code == code
    assert why in ended.err
    assert json.loads(ended.out)["error"] == ended.err.strip()
    pair.refresh_from_db()
    assert pair.params == before


@pytest.mark.django_db
def test_a_planned_topology_only_changes_its_parameters() -> None:
    pair = make_pair(make_broker())
    call_command("edit", pair.slug, "delay=20s", stdout=(out := StringIO()))
    assert out.getvalue() == "Parameters changed.\n"
    pair.refresh_from_db()
    assert (pair.params["delay"], pair.state) == ("20s", State.PLANNED)


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.APPLYING, State.DELETED])
def test_what_is_not_applied_whole_is_not_edited(state: State) -> None:
    pair = make_pair(make_broker())
    Topology.objects.update(state=state)
    pair.refresh_from_db()
    with pytest.raises(Refusal):
        preview_edit(pair, {"name": "orders", "delay": "9s"})


@pytest.mark.django_db
def test_a_forwarder_keeps_its_parameters() -> None:
    params = busy_wait.parse({"queue": "work", "delays": "1m"})
    row = create_topology(None, make_broker(), busy_wait.KIND, params)
    row.state = State.APPLIED
    with pytest.raises(Refusal, match="with a forwarder cannot be edited"):
        preview_edit(row, busy_wait.store(params))


def test_what_was_adopted_as_others_declare_it_has_no_parameters() -> None:
    found = Definitions.of([a_queue("w", ttl=9, dlx="", key="end"), Queue("end")])
    chain = claim(make_chain("end", ["w"], found), found)
    row = Topology(broker=Broker(), kind="delay_chain", params=delay_chain.store(chain))
    with pytest.raises(Refusal, match="This topology has no parameters"):
        preview_edit(row, {})
