"""Messages changed on real brokers: exactly those, and all others as ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from delayboard.changes import intercept
from delayboard.changes.carry_out import Session
from delayboard.changes.request import request, undo
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, eventually
from tests.real_broker.changing import (
    STATED,
    all_closed,
    consuming,
    delay,
    expire_leases,
    is_in_order,
    short_times,
    states,
    traffic,
    working,
)
from tests.real_broker.refusing import refuse_beside
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, Binding, Queue
from topology.models import AuditEntry, Topology, Work
from topology.operations.provision import preview_removal
from topology.patterns.delay_levels.params import Params, delivery_name, level_name

__all__ = ("short_times",)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("short_times")]
QUEUES = ("orders", "bills", "mäils")


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


def bind(management: Management, params: Params, queues: tuple[str, ...] = QUEUES) -> None:
    for queue in queues:
        kind = Arguments({"x-queue-type": params.queue_type})
        management.declare_queue(Queue(queue, arguments=kind))
        management.bind(Binding(delivery_name(params), queue, f"#.{queue}"))


@pytest.fixture
def topology(request: pytest.FixtureRequest, vhost: Vhost, management: Management) -> Topology:
    params = Params("own", "shop", 9, timedelta(milliseconds=50), request.param)
    row = applied_levels(vhost, params)
    bind(management, params)
    return row


only_quorum = pytest.mark.parametrize("topology", ["quorum"], indirect=True)
only_classic = pytest.mark.parametrize("topology", ["classic"], indirect=True)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.usefixtures("least_account")
@only_quorum
@pytest.mark.generations("4.0", "4.3")
def test_exactly_the_changed_messages_change_during_other_traffic(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    assert_exactly_the_changed_change(vhost, management, topology)


@only_classic
@pytest.mark.generations("3.10")
def test_exactly_the_changed_messages_of_classic_queues_change(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    assert_exactly_the_changed_change(vhost, management, topology)


def assert_exactly_the_changed_change(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    before = observe(management).declared
    wanted = [
        (f"{queue} {number:02}", queue, seconds(12 + number * 0.1))
        for number in range(15)
        for queue in QUEUES
    ]
    # With the routing key of one that is cancelled.
    wanted.append(("bills like 07", "bills", seconds(12.7)))
    exchange = delivery_name(topology.parsed)
    keys = {queue: "0." * 9 + queue for queue in QUEUES}
    with (
        consuming(vhost, QUEUES) as arrived,
        traffic(vhost, exchange, keys.values(), rate=100) as sent,
        working(),
    ):
        rows = delay(topology, vhost, wanted, with_id_header=["orders"])
        cancelled = [rows[f"{queue} {number:02}"] for queue in QUEUES for number in (0, 7, 14)]
        moved = [rows[f"{queue} {number:02}"] for queue in QUEUES for number in (3, 9)]
        hurried = [rows[f"{queue} {number:02}"] for queue in QUEUES for number in (5, 11)]
        later = datetime.now(UTC) + seconds(17)
        for some, kind, at in (
            (cancelled, ChangeKind.CANCEL, None),
            (moved, ChangeKind.RESCHEDULE, later),
            (hurried, ChangeKind.DELIVER_NOW, None),
        ):
            verdicts = request(None, some, kind, at)
            assert [verdict.problem for verdict in verdicts] == [""] * len(some)
        eventually(all_closed, "the bindings are restored", seconds=60)
        time.sleep(max(0.0, (later + seconds(1) - datetime.now(UTC)).total_seconds()))
    assert set(states().values()) == {ChangeState.DONE}
    assert observe(management).declared == before
    passed = dict(Interception.objects.values_list("queue", "passed"))
    # With an id header only the changed messages come into an intercept queue, and with a routing
    # key those with the same one.
    assert (passed["orders"], passed["bills"]) == (0, 1)
    assert passed["mäils"] > 15
    gone = {row.key for row in cancelled}
    for queue in QUEUES:
        names = arrived.ids(queue)
        others = [name for name in names if name.startswith("t")]
        assert sorted(others) == sent[keys[queue]]
        assert is_in_order(others, queue)
        own = [name for name in names if not name.startswith("t")]
        assert sorted(own) == sorted(
            name for name, of, _ in wanted if of == queue and name not in gone
        )
        assert all(arrived.stated[name] == {"message_id": name, **STATED} for name in own)
    for row in moved:
        assert arrived.at(row.destination, row.key) >= later
    for row in hurried:
        assert row.due_at is not None
        assert arrived.at(row.destination, row.key) < row.due_at
    assert AuditEntry.objects.filter(action="message cancelled").count() == len(cancelled)


class Killed(BaseException):
    """In place of a kill: no step after it, and connections that just break."""


@only_quorum
@pytest.mark.parametrize(
    "queue", [QUEUES[0], *(pytest.param(one, marks=pytest.mark.long) for one in QUEUES[1:])]
)
def test_a_worker_that_dies_at_any_step_changes_exactly_these_messages_too(
    vhost: Vhost,
    management: Management,
    topology: Topology,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
) -> None:
    before = observe(management).declared
    monkeypatch.setattr(Consumer, "give_back", lambda self: None)
    wanted = [(f"m {number:02}", queue, seconds(12 + number * 0.15)) for number in range(40)]
    left = 0

    def step(session: Session) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        whole(session)

    whole = Session.step
    monkeypatch.setattr(Session, "step", step)
    exchange, key = delivery_name(topology.parsed), "0." * 9 + queue
    kills = 0
    with (
        consuming(vhost, [queue]) as arrived,
        traffic(vhost, exchange, [key], rate=50) as sent,
    ):
        rows = delay(topology, vhost, wanted, with_id_header=["orders"])
        cancelled = [rows[f"m {number:02}"] for number in range(0, 40, 3)]
        moved = [rows[f"m {number:02}"] for number in range(1, 40, 10)]
        request(None, cancelled, ChangeKind.CANCEL)
        request(None, moved, ChangeKind.RESCHEDULE, datetime.now(UTC) + seconds(20))
        stop = Event()
        while not all_closed():
            left = kills
            try:
                for row in Interception.objects.all():
                    if claimed := work.claim_this(row.work, "worker"):
                        work.attempt(intercept.attend, claimed, stop=stop)
            except Killed:
                kills += 1
                expire_leases()
            time.sleep(0.02)
        time.sleep(3)
    assert kills > 8
    assert set(states().values()) == {ChangeState.DONE}
    assert observe(management).declared == before
    names = arrived.ids(queue)
    gone = {row.key for row in cancelled}
    assert set(names) == {name for name, *_ in wanted if name not in gone} | set(sent[key])
    assert arrived.doubled(queue).total() <= kills * intercept.PREFETCH


def test_a_queue_that_is_bound_again_and_again_gets_other_messages_once_and_reports_the_changed(
    vhost: Vhost, management: Management
) -> None:
    """As NServiceBus binds the queue of a destination before each delayed message."""
    topology = applied_levels(vhost, Params("nsb-v1"))
    bind(management, topology.parsed, ("orders",))
    before = observe(management).declared
    binding = Binding(delivery_name(topology.parsed), "orders", "#.orders")
    wanted = [(f"m{number:02}", "orders", seconds(9 + number / 3)) for number in range(30)]
    sent_on = {name for name, *_ in wanted[::2]}
    with consuming(vhost, ["orders"]) as arrived, working(1):
        rows = delay(topology, vhost, wanted, with_id_header=["orders"])
        request(None, [rows[name] for name, *_ in wanted[1::2]], ChangeKind.CANCEL)
        opened = Interception.objects.filter(state=InterceptionState.OPEN)
        eventually(opened.exists, "it intercepts")
        while opened.exists():
            management.bind(binding)
            time.sleep(0.5)
        eventually(all_closed, "the bindings are restored", seconds=60)
        time.sleep(1)
    names = arrived.ids("orders")
    assert sorted(name for name in names if name in sent_on) == sorted(sent_on)
    changes = ScheduledChange.objects.all()
    assert {change.state for change in changes} == {ChangeState.DONE}
    doubtful = {change.key for change in changes if change.may_be_duplicated}
    assert set(names) - sent_on <= doubtful
    assert all(
        "bound the queue again" in change.error for change in changes.filter(may_be_duplicated=True)
    )
    entries = AuditEntry.objects.filter(action="queue bound again by others")
    reported = {pk for entry in entries for pk in entry.details["changes"]}
    assert reported == set(changes.filter(may_be_duplicated=True).values_list("pk", flat=True))
    assert reported
    assert observe(management).declared == before


@only_quorum
def test_a_change_is_undone_until_it_took_effect(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    before = observe(management).declared
    with consuming(vhost, ["orders"]) as arrived, working():
        rows = delay(topology, vhost, [("a", "orders", seconds(12)), ("b", "orders", seconds(12))])
        request(None, list(rows.values()), ChangeKind.CANCEL)
        first, second = ScheduledChange.objects.order_by("key")
        eventually(
            lambda: Interception.objects.filter(state=InterceptionState.OPEN), "it intercepts"
        )
        # Meanwhile the topology looks as before, and is not deleted.
        assert observe(management).without_interceptions().declared == before
        obstacle = preview_removal(topology).obstacles[0]
        assert obstacle.startswith("Delayboard intercepts the messages for “orders”.")
        assert undo(None, first)
        eventually(all_closed, "the bindings are restored")
        assert not undo(None, second)
        time.sleep(1)
    assert states() == {"a": ChangeState.UNDONE, "b": ChangeState.DONE}
    assert arrived.ids("orders") == ["a"]
    assert observe(management).declared == before


@only_quorum
def test_a_change_that_is_requested_while_an_interception_ends_takes_effect(
    vhost: Vhost, management: Management, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = observe(management).declared
    # The end would last longer than the second message waits.
    monkeypatch.setattr(intercept, "REPORT_SECONDS", 600.0)
    wanted = [("a", "orders", seconds(6.5)), ("b", "orders", seconds(12))]
    with consuming(vhost, ["orders"]) as arrived, working(1):
        rows = delay(topology, vhost, wanted)
        request(None, [rows["a"]], ChangeKind.CANCEL)
        ending = Interception.objects.filter(state=InterceptionState.ENDING)
        eventually(ending.exists, "the interception ends")
        request(None, [rows["b"]], ChangeKind.CANCEL)
        eventually(lambda: states()["b"] == ChangeState.DONE, "the message is taken out")
        monkeypatch.setattr(intercept, "REPORT_SECONDS", 1.5)
        eventually(all_closed, "the bindings are restored", seconds=60)
    assert set(states().values()) == {ChangeState.DONE}
    assert arrived.ids("orders") == []
    assert observe(management).declared == before


@only_classic
def test_what_another_queue_refused_is_not_published_again_and_its_message_goes_on_marked(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    with consuming(vhost, ["orders"]) as arrived, working(1):
        rows = delay(topology, vhost, [("m", "orders", seconds(8))])
        for level in range(topology.parsed.levels):
            refuse_beside(management, level_name(topology.parsed, level), "#")
        at = datetime.now(UTC) + seconds(11)
        (verdict,) = request(None, [rows["m"]], ChangeKind.RESCHEDULE, at)
        assert verdict.problem == ""
        eventually(all_closed, "the bindings are restored", seconds=60)
        eventually(lambda: arrived.number >= 2, "both copies arrive")
        time.sleep(1)
    assert arrived.doubled("orders") == {"m": 1}
    change = ScheduledChange.objects.get()
    assert (change.state, change.may_be_duplicated) == (ChangeState.FAILED, True)
    assert "It may have arrived in " in change.error


@only_quorum
def test_a_full_queue_and_a_deleted_one_hold_their_messages_up_and_lose_none(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    before = observe(management).declared
    management.delete_queue("orders", only_if_empty=False)
    kind = topology.parsed.queue_type
    full = Arguments({"x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish"})
    binding = Binding(delivery_name(topology.parsed), "orders", "#.orders")
    management.declare_queue(Queue("orders", arguments=full))
    management.bind(binding)
    wanted = [(f"m{number}", "orders", seconds(12)) for number in range(10)]
    with working():
        rows = delay(topology, vhost, wanted)
        request(None, [rows["m9"]], ChangeKind.CANCEL)
        work_row = Interception.objects.get().work
        eventually(lambda: _error(work_row, "refuses messages"), "the full queue is reported")
        # With it goes what is in it.
        management.delete_queue("orders", only_if_empty=False)
        eventually(lambda: _error(work_row, "does not exist"), "the deleted queue is reported")
        management.declare_queue(Queue("orders", arguments=Arguments({"x-queue-type": kind})))
        management.bind(binding)
        with consuming(vhost, ["orders"]) as arrived:
            eventually(all_closed, "the bindings are restored", seconds=90)
            time.sleep(1)
    names = arrived.ids("orders")
    # A quorum queue may take one more than its length.
    assert len(names) in (7, 8)
    assert names == [f"m{number}" for number in range(9 - len(names), 9)]
    assert observe(management).declared == before


@only_quorum
def test_changes_are_exact_though_no_worker_runs_when_their_messages_are_due(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    """Of those that were requested long before, and of one that is requested meanwhile."""
    wanted = [
        ("a", "orders", seconds(8)),
        ("b", "orders", seconds(15)),
        ("c", "orders", seconds(25)),
    ]
    with consuming(vhost, ["orders"]) as arrived:
        rows = delay(topology, vhost, wanted, with_id_header=["orders"])
        request(None, [rows["a"], rows["c"]], ChangeKind.CANCEL)
        with working(1):
            opened = Interception.objects.filter(state=InterceptionState.OPEN)
            eventually(opened.exists, "it intercepts")
        request(None, [rows["b"]], ChangeKind.CANCEL)
        name = Interception.objects.get().name
        address = address_of(vhost)
        eventually(lambda: live_depths(address, [name])[name] == 3, "all of them wait")
        with working(1):
            eventually(all_closed, "the bindings are restored", seconds=60)
    assert set(states().values()) == {ChangeState.DONE}
    assert arrived.ids("orders") == []


@only_quorum
def test_a_queue_that_is_deleted_and_declared_again_gets_the_messages_that_pass_the_worker(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    """Nothing leads to the new queue before the worker binds it."""
    before = observe(management).declared
    with working():
        wanted = [("a", "orders", seconds(12)), ("b", "orders", seconds(12))]
        rows = delay(topology, vhost, wanted, with_id_header=["orders"])
        request(None, [rows["b"]], ChangeKind.CANCEL)
        opened = Interception.objects.filter(state=InterceptionState.OPEN)
        eventually(opened.exists, "it intercepts")
        management.delete_queue("orders", only_if_empty=False)
        kind = Arguments({"x-queue-type": topology.parsed.queue_type})
        management.declare_queue(Queue("orders", arguments=kind))
        eventually(all_closed, "the bindings are restored", seconds=60)
        with consuming(vhost, ["orders"]) as arrived:
            eventually(lambda: arrived.ids("orders") == ["a"], "the message arrives")
    assert states() == {"b": ChangeState.DONE}
    assert observe(management).declared == before


@only_classic
def test_a_copy_that_only_a_tap_took_takes_no_message_s_place(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    binding = Binding(delivery_name(topology.parsed), "orders", "#.orders")
    rows = delay(topology, vhost, [("a", "orders", seconds(12))])
    request(None, list(rows.values()), ChangeKind.DELIVER_NOW)
    management.unbind(binding)
    with working(1):
        eventually(lambda: states() == {"a": ChangeState.FAILED}, "the copy is refused")
        management.bind(binding)
        with consuming(vhost, ["orders"]) as arrived:
            eventually(lambda: arrived.ids("orders") == ["a"], "the message itself arrives")


@only_quorum
def test_an_interception_ends_though_nothing_can_come_any_more(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    """As after the topology was deleted while a change was requested."""
    rows = delay(topology, vhost, [("a", "orders", seconds(6))])
    request(None, list(rows.values()), ChangeKind.CANCEL)
    management.unbind(Binding(delivery_name(topology.parsed), "orders", "#.orders"))
    before = observe(management).declared
    with working(1):
        eventually(all_closed, "the change is given up", seconds=120)
    (change,) = ScheduledChange.objects.all()
    assert change.state == ChangeState.MISSED
    assert change.error.startswith("The message was not intercepted. The queue “orders” has no")
    assert observe(management).declared == before


@only_quorum
def test_a_queue_that_was_bound_in_a_second_way_since_is_not_intercepted(
    vhost: Vhost, management: Management, topology: Topology
) -> None:
    rows = delay(topology, vhost, [("a", "orders", seconds(8))])
    request(None, list(rows.values()), ChangeKind.CANCEL)
    management.bind(Binding(delivery_name(topology.parsed), "orders", "#"))
    before = observe(management).declared
    with consuming(vhost, ["orders"]) as arrived, working(1):
        eventually(all_closed, "the change is given up")
        assert states() == {"a": ChangeState.FAILED}
        eventually(lambda: arrived.ids("orders") == ["a"], "the message arrives")
    assert observe(management).declared == before


def _error(row: Work, words: str) -> bool:
    row.refresh_from_db()
    return words in row.error
