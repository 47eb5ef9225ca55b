from __future__ import annotations

import pytest
from hypothesis import given

from tests.topology import strategies
from tests.topology.builders import (
    NOON,
    PAIR,
    TAP,
    FakeBroker,
    a_queue,
    a_snapshot,
)
from topology.broker.management.client import Management
from topology.definitions import (
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
    show_value,
)
from topology.provisioning.plan import Change, Difference, ends, make_plan, title
from topology.structure.copies import Tap
from topology.structure.taps import choose_tap, tap_definitions


def test_a_plan_is_summed_up_in_a_line() -> None:
    wanted = Definitions.of(
        [Exchange("x"), Exchange("y"), a_queue("q"), Binding("x", "q", "k"), a_queue("there")]
    )
    plan = make_plan(wanted, a_snapshot(Definitions.of([a_queue("there")])))
    added = "Adds 1 binding, 2 exchanges and 1 queue; changes nothing that exists."
    assert plan.summary == added
    assert make_plan(wanted, a_snapshot(wanted)).summary == (
        "Adds nothing; changes nothing that exists."
    )
    other = a_snapshot(Definitions.of([Exchange("x", "fanout")]))
    assert make_plan(Definitions.of([Exchange("x")]), other).summary == (
        "Adds nothing; conflicts with 1 object."
    )


@given(strategies.definitions(), strategies.definitions())
def test_a_plan_signs_every_wanted_thing_and_creates_what_is_missing(
    wanted: Definitions, there: Definitions
) -> None:
    plan = make_plan(wanted, a_snapshot(there))
    assert [change.object for change in plan.changes] == list(wanted)
    identities = {obj.identity for obj in there}
    after = identities | {obj.identity for obj in wanted}
    missing = [
        obj for obj in wanted if obj.identity not in identities and after.issuperset(ends(obj))
    ]
    assert [change.object for change in plan.select("create")] == missing
    equal = [obj for obj in wanted if obj in there.exchanges | there.queues | there.bindings]
    assert [change.object for change in plan.select("present")] == equal
    assert all(change.differences for change in plan.select("conflict"))
    assert make_plan(wanted, a_snapshot(wanted)).is_empty


@pytest.mark.parametrize(
    ("wanted", "found", "differences"),
    [
        (a_queue("q", ttl=500), a_queue("q", ttl=900), [("x-message-ttl", "500", "900")]),
        (a_queue("q", ttl=500), a_queue("q"), [("x-message-ttl", "500", "not set")]),
        (a_queue("q"), a_queue("q", ttl=0), [("x-message-ttl", "not set", "0")]),
        (a_queue("q", x=True), a_queue("q", x=1), [("x", "yes", "1")]),
        (Queue("q"), Queue("q", durable=False), [("durable", "yes", "no")]),
        (Queue("q"), Queue("q", auto_delete=True), [("auto-delete", "no", "yes")]),
        (Exchange("x"), Exchange("x", "fanout"), [("type", "direct", "fanout")]),
        (Exchange("x"), Exchange("x", internal=True), [("internal", "no", "yes")]),
        (Exchange("x"), Exchange("x"), []),
    ],
)
def test_a_conflict_shows_both_sides(
    wanted: BrokerObject, found: BrokerObject, differences: list[tuple[str, str, str]]
) -> None:
    plan = make_plan(Definitions.of([wanted]), a_snapshot(Definitions.of([found])))
    (change,) = plan.changes
    assert change.differences == tuple(Difference(*reported) for reported in differences)
    assert change.sign == ("conflict" if differences else "present")
    assert plan.is_applicable == (not differences)


def test_a_plan_compares_with_what_was_declared_and_not_with_what_a_policy_makes_of_it() -> None:
    declared, in_force = Definitions.of([a_queue("q")]), Definitions.of([a_queue("q", ttl=5)])
    snapshot = a_snapshot(in_force)
    snapshot = type(snapshot)("4.3.6", NOON, in_force, declared)
    assert make_plan(declared, snapshot).is_empty


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (Exchange("x", "topic"), "topic exchange x"),
        (a_queue("q", type="quorum"), "quorum queue q"),
        (Binding("x", "q", "k"), "binding from x to queue q with key k"),
        (Binding("x", "y", "", False), "binding from x to exchange y"),
    ],
)
def test_a_thing_has_a_title(obj: BrokerObject, words: str) -> None:
    assert title(obj) == Change("create", obj).title == words


def test_values_are_shown_in_words() -> None:
    assert [show_value(value) for value in (None, True, False, 5, "x")] == [
        "not set",
        "yes",
        "no",
        "5",
        "x",
    ]


def test_applying_declares_what_is_missing_in_order() -> None:
    broker = FakeBroker()
    plan = make_plan(PAIR, a_snapshot(Definitions.of([Exchange("orders")])))
    missing = [change.object for change in plan.select("create")]
    Management.declare(broker, missing)  # type: ignore[arg-type]
    assert broker.calls == [
        ("exchange", "orders-retry"),
        ("queue", "orders"),
        ("queue", "orders-retry"),
        ("bind", ("orders", "orders")),
        ("bind", ("orders-retry", "orders-retry")),
    ]
    assert len(missing) == 5


def test_a_tap_is_bounded_drops_its_oldest_and_never_refuses() -> None:
    (queue,) = tap_definitions("t", [Tap("x", "k", "entry")], "classic").queues
    assert queue.durable
    assert queue.arguments == Arguments(
        {"x-queue-type": "classic", "x-max-length-bytes": 50_000_000, "x-overflow": "drop-head"}
    )


def test_a_quorum_tap_keeps_what_was_delivered_often() -> None:
    """From RabbitMQ 4.0 on a quorum queue without its own limit drops it after twenty times."""
    (queue,) = tap_definitions("t", [Tap("x", "k", "entry")], "quorum").queues
    assert queue.type == "quorum"
    assert queue.arguments["x-overflow"] == "drop-head"
    assert queue.arguments["x-max-length-bytes"] == 50_000_000
    assert queue.arguments["x-delivery-limit"] == 1_000_000_000


@pytest.mark.parametrize(
    ("nodes", "quorum_beside", "chosen"),
    [
        (0, True, "classic"),
        (1, True, "classic"),
        (2, False, "classic"),
        (2, True, "quorum"),
        (3, False, "quorum"),
        (3, True, "quorum"),
    ],
)
def test_a_tap_survives_a_node_where_a_cluster_can(
    nodes: int, quorum_beside: bool, chosen: str
) -> None:
    kind = "quorum" if quorum_beside else "classic"
    beside = Definitions.of([Queue("q", arguments=Arguments({"x-queue-type": kind}))])
    assert choose_tap([f"rabbit@{n}" for n in range(nodes)], beside) == chosen


def test_a_queue_declared_without_a_type_is_a_classic_one() -> None:
    untyped = Queue("q", arguments=Arguments({"x-message-ttl": 5}))
    typed = Queue("q", arguments=Arguments({"x-message-ttl": 5, "x-queue-type": "classic"}))
    quorum = Queue("q", arguments=Arguments({"x-message-ttl": 5, "x-queue-type": "quorum"}))
    assert make_plan(Definitions.of([untyped]), a_snapshot(Definitions.of([typed]))).is_empty
    assert make_plan(Definitions.of([typed]), a_snapshot(Definitions.of([untyped]))).is_empty
    plan = make_plan(Definitions.of([untyped]), a_snapshot(Definitions.of([quorum])))
    (conflict,) = plan.changes
    assert conflict.differences == (Difference("x-queue-type", "classic", "quorum"),)


def test_without_anything_to_see_there_is_no_tap() -> None:
    assert tap_definitions("t", [], "classic") == Definitions()


def test_a_binding_between_what_nobody_makes_is_a_conflict_that_names_what_is_missing() -> None:
    wanted = Definitions.of([a_queue("q"), Binding("gone", "q", "k")])
    plan = make_plan(wanted, a_snapshot(Definitions()))
    (conflict,) = plan.select("conflict")
    assert conflict.differences == (Difference("exchange gone", "exists", "missing"),)
    assert make_plan(wanted, a_snapshot(Definitions.of([Exchange("gone")]))).is_applicable


def test_a_tap_stands_beside_the_real_bindings() -> None:
    assert TAP.bindings == {
        Binding("orders", "delayboard.tap.orders", "orders"),
        Binding("orders-retry", "delayboard.tap.orders", "orders"),
    }
    assert (PAIR | TAP).without_taps() == PAIR
