from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.topology.builders import (
    ALL_OURS,
    EVERYTHING,
    NOON,
    PAIR,
    FakeBroker,
    a_queue,
    a_snapshot,
    nothing,
)
from topology.broker.errors import Unreachable
from topology.definitions import (
    INTERCEPTION_PREFIX,
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
)
from topology.provisioning.plan import title
from topology.provisioning.teardown import Occupied, plan_teardown, tear_down
from topology.snapshot import QueueNumbers
from topology.transfer.interception import Interception


def titles(objects: tuple[BrokerObject, ...]) -> list[str]:
    return [title(obj) for obj in objects]


def test_queues_with_a_ttl_go_first_then_the_others_then_bindings_then_exchanges() -> None:
    teardown = plan_teardown(PAIR, ALL_OURS, a_snapshot(PAIR))
    assert titles(teardown.deletes) == [
        "classic queue orders-retry",
        "classic queue orders",
        "binding from orders to queue orders with key orders",
        "binding from orders-retry to queue orders-retry with key orders",
        "direct exchange orders",
        "direct exchange orders-retry",
    ]
    assert (teardown.keeps, teardown.occupied, teardown.messages) == ((), (), 0)


def test_what_another_made_or_is_bound_to_is_kept() -> None:
    foreign = Definitions.of([Queue("audit"), Binding("orders", "audit", "#")])
    ours = [identity for identity in ALL_OURS if identity != ("queue", "orders")]
    teardown = plan_teardown(PAIR, ours, a_snapshot(PAIR | foreign))
    assert titles(teardown.keeps) == [
        "direct exchange orders",
        "direct exchange orders-retry",
        "classic queue orders",
    ]
    assert not {"audit"} & {getattr(obj, "name", "") for obj in teardown.deletes}


def test_a_queue_into_which_another_binds_is_kept() -> None:
    foreign = Definitions.of([Exchange("news"), Binding("news", "orders", "")])
    teardown = plan_teardown(PAIR, ALL_OURS, a_snapshot(PAIR | foreign))
    assert titles(teardown.keeps) == ["classic queue orders"]


def test_a_namesake_of_another_kind_is_deleted_all_the_same() -> None:
    foreign = Definitions.of(
        [Exchange("news"), Queue("orders-copy"), Exchange("delayboard.x"), Binding("news", "x", "")]
    )
    namesake = Definitions.of([Binding("orders", "copy", "k", destination_is_queue=False)])
    wanted = Definitions.of([Queue("orders"), Exchange("other")])
    snapshot = a_snapshot(wanted | foreign | namesake | Definitions.of([Exchange("orders")]))
    teardown = plan_teardown(wanted, [("queue", "orders"), ("exchange", "other")], snapshot)
    assert titles(teardown.deletes) == ["classic queue orders", "direct exchange other"]
    assert teardown.foreign == ()


def test_bindings_of_others_are_named_but_not_our_own_nor_those_of_taps() -> None:
    foreign = Definitions.of(
        [
            Binding("orders", "audit", "#"),
            Binding("orders", "copy", "", destination_is_queue=False),
            Binding("orders", "delayboard.tap.else", "orders"),
            Binding("elsewhere", "audit", "#"),
        ]
    )
    bound = {obj.identity for obj in EVERYTHING.bindings}
    ours = [identity for identity in ALL_OURS if identity not in bound]
    teardown = plan_teardown(EVERYTHING, ours, a_snapshot(EVERYTHING | foreign))
    assert teardown.obstacles == [
        "The exchange “copy” is bound to the exchange “orders”. Unbind it first.",
        "The queue “audit” is bound to the exchange “orders” with the key “#”. Unbind it first.",
    ]


LATE = "The queue “late” dead-letters into the {}. Delete or change it first."
NEWS = "The exchange “news” sends unroutable messages to the exchange “orders”. "


@pytest.mark.parametrize(
    ("stays", "sentence"),
    [
        (a_queue("late", ttl=9000, dlx="orders", key="k"), LATE.format("exchange “orders”")),
        (a_queue("late", ttl=9000, dlx="", key="orders"), LATE.format("queue “orders”")),
        (
            Exchange("news", arguments=Arguments({"alternate-exchange": "orders"})),
            f"{NEWS}Delete or change it first.",
        ),
    ],
)
@pytest.mark.parametrize("is_by_policy", [False, True])
def test_what_stays_and_leads_into_what_is_ours_is_named_and_its_end_kept(
    stays: Queue | Exchange, sentence: str, is_by_policy: bool
) -> None:
    snapshot = a_snapshot(PAIR | Definitions.of([stays]))
    if is_by_policy:
        plain = replace(stays, arguments=Arguments())
        snapshot = replace(snapshot, declared=PAIR | Definitions.of([plain]))
    teardown = plan_teardown(PAIR, ALL_OURS, snapshot)
    assert teardown.obstacles == [sentence]
    kept = "classic queue orders" if "the queue “orders”" in sentence else "direct exchange orders"
    assert titles(teardown.keeps) == [kept]


@pytest.mark.parametrize(
    "stays",
    [
        a_queue("late", ttl=9000, dlx="elsewhere", key="orders"),
        a_queue("late", ttl=9000, dlx="", key="elsewhere"),
        a_queue("late", ttl=9000, dlx=""),
        a_queue("delayboard.tap.else", dlx="orders"),
        Exchange("news", arguments=Arguments({"alternate-exchange": "elsewhere"})),
    ],
)
def test_what_leads_elsewhere_or_is_a_tap_is_not_in_the_way(stays: Queue | Exchange) -> None:
    snapshot = a_snapshot(PAIR | Definitions.of([stays]))
    assert plan_teardown(PAIR, ALL_OURS, snapshot).foreign == ()


def test_a_queue_of_the_topology_that_is_not_ours_is_in_the_way_too() -> None:
    ours = [identity for identity in ALL_OURS if identity != ("queue", "orders-retry")]
    teardown = plan_teardown(PAIR, ours, a_snapshot(PAIR))
    assert teardown.obstacles == [LATE.format("exchange “orders”").replace("late", "orders-retry")]


def test_what_is_gone_already_is_neither_deleted_nor_kept() -> None:
    teardown = plan_teardown(PAIR, ALL_OURS, a_snapshot(Definitions()))
    assert (teardown.deletes, teardown.keeps) == ((), ())


def test_messages_are_in_the_way_but_not_in_a_tap() -> None:
    tap = "delayboard.tap.orders"
    numbers = {
        "orders": QueueNumbers(messages=2),
        "orders-retry": QueueNumbers(messages=3),
        tap: QueueNumbers(messages=9),
    }
    snapshot = a_snapshot(EVERYTHING, numbers)
    teardown = plan_teardown(EVERYTHING, ALL_OURS, snapshot, disposable=[tap])
    assert set(teardown.occupied) == {
        Occupied("orders", 2, None),
        Occupied("orders-retry", 3, NOON + timedelta(seconds=5)),
    }
    assert teardown.messages == 5


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "an unknown number of messages"),
        ({"slow": 0}, "an unknown number of messages"),
        ({"slow": 2}, "at least 2 messages"),
        ({"slow": 1, "fast": 0}, "1 message"),
        ({"slow": 1999, "fast": 1}, "2\u202f000 messages"),
    ],
)
def test_messages_that_the_broker_has_not_counted_are_no_zero_and_have_no_due_time(
    known: dict[str, int], words: str
) -> None:
    wanted = Definitions.of(a_queue(name, type="quorum", ttl=5000) for name in ("slow", "fast"))
    numbers = {name: QueueNumbers(messages=number) for name, number in known.items()}
    owned = [queue.identity for queue in wanted.queues]
    teardown = plan_teardown(wanted, owned, a_snapshot(wanted, numbers))
    assert teardown.messages_text == words
    assert all((one.latest_due_at is None) is (one.messages is None) for one in teardown.occupied)


@pytest.mark.parametrize(("forced", "only_if_empty"), [(False, True), (True, False)])
def test_the_broker_is_asked_to_keep_a_classic_queue_that_filled_meanwhile(
    forced: bool, only_if_empty: bool
) -> None:
    tap = "delayboard.tap.orders"
    quorum = Definitions.of([a_queue("q", type="quorum")])
    wanted = EVERYTHING | quorum
    owned = [*ALL_OURS, ("queue", "q")]
    teardown = plan_teardown(wanted, owned, a_snapshot(wanted), disposable=[tap])
    broker = FakeBroker()
    tear_down(teardown, broker, nothing, disposable=[tap], even_with_messages=forced)  # type: ignore[arg-type]
    asked = dict(obj for verb, obj in broker.calls if verb == "delete queue")
    assert asked == {"orders": only_if_empty, "orders-retry": only_if_empty, tap: False, "q": False}
    assert [verb for verb, _ in broker.calls][-2:] == ["delete exchange"] * 2


def test_a_broker_that_fails_in_the_middle_leaves_the_rest() -> None:
    teardown = plan_teardown(PAIR, ALL_OURS, a_snapshot(PAIR))
    broker = FakeBroker(fails_at=3)
    with pytest.raises(Unreachable):
        tear_down(teardown, broker, nothing)  # type: ignore[arg-type]
    assert [verb for verb, _ in broker.calls] == ["delete queue", "delete queue"]


@pytest.mark.parametrize("is_released", [False, True])
def test_an_intercepted_queue_is_bound_as_before_and_keeps_its_topology(is_released: bool) -> None:
    """Also where only the binding is read again, as on a broker whose polls are slow."""
    bindings = (Binding("orders", "work", "k"), Binding("orders", "work", "l"))
    before = PAIR | Definitions.of([Queue("work"), *bindings])
    one = Interception(f"{INTERCEPTION_PREFIX}1", bindings, "quorum", timedelta(minutes=10))
    taking = [one.taking_all, one.taking_key("k"), *([one.detour.switch] if is_released else [])]
    left = before.without({binding.identity for binding in bindings})
    during = left | one.objects | Definitions.of([*one.entrances, *taking])
    seen = a_snapshot(during).without_interceptions()
    assert seen.definitions == seen.declared == before
    assert seen.intercepted == {one.name: "work"}
    again = replace(seen, definitions=during.without(obj.identity for obj in one.objects))
    assert again.without_interceptions().definitions == before
    teardown = plan_teardown(PAIR, ALL_OURS, seen)
    assert teardown.obstacles[0].startswith("Delayboard intercepts the messages for “work”.")
    assert a_snapshot(before).without_interceptions() == a_snapshot(before)
