"""Which message is the one of a change, and what is not published where it is too late."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest
from django.utils import timezone

from analytics.models import ScheduledMessage
from analytics.recorder.copies import content_of
from delayboard.changes import check, copies, take
from delayboard.changes.carry_out import Executor, Intercepted, Outcome, Session
from delayboard.changes.check import Point
from delayboard.changes.request import request, undo
from delayboard.changes.take import CHANGE_HEADER
from delayboard.models import (
    ChangeKind,
    ChangeState,
    DelayMigration,
    Interception,
    InterceptionState,
    MovedMessage,
    ScheduledChange,
)
from tests.builders import make_broker
from tests.real_broker.changing import store
from topology import work
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Definitions
from topology.message import Message
from topology.models import State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.transfer import interception

pytestmark = pytest.mark.django_db
BINDING = Binding("a.delay-delivery", "work", "#.work")
SOON = timedelta(seconds=9)


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> Topology:
    point = Point((BINDING,), "classic")
    monkeypatch.setattr(check._Checker, "_point", lambda self, topology, destination: point)
    row = create_topology(None, make_broker(), delay_levels.KIND, levels.Params("own", "a", 12))
    Topology.objects.filter(pk=row.pk).update(state=State.APPLIED)
    row.refresh_from_db()
    return row


def message(body: bytes = b"a", *, own: int | None = None) -> Message:
    """Of one id; `own` is the number of the change that it stands for."""
    headers = {} if own is None else {CHANGE_HEADER: str(own)}
    return Message("a", "0.work", build_properties(headers, message_id="m"), body)


def died(second: int) -> Message:
    """One that a level dead-lettered at this second."""
    at = datetime(2030, 1, 1, 0, 0, second, tzinfo=UTC)
    death = {"queue": "level", "reason": "expired", "count": 1, "time": at, "exchange": "x"}
    properties = build_properties({"x-death": [death]}, message_id="m")
    return Message("a", "0.work", properties, b"a")


def requested(row: ScheduledMessage, kind: ChangeKind = ChangeKind.CANCEL) -> ScheduledChange:
    assert [verdict.problem for verdict in request(None, [row], kind)] == [""]
    return ScheduledChange.objects.latest("pk")


def test_a_message_of_the_same_id_and_another_content_is_not_taken(topology: Topology) -> None:
    change = requested(store(topology, message(), "work", SOON))
    found = take.Tombstones(ScheduledChange.objects.all())
    assert found.find(message()) == change
    assert found.find(message(b"b")) is None


def test_a_message_of_the_same_id_and_another_delay_is_not_taken(topology: Topology) -> None:
    change = requested(store(topology, message(), "work", SOON))
    found = take.Tombstones(ScheduledChange.objects.all())
    assert found.find(replace(message(), routing_key="1.work")) is None
    assert found.find(message()) == change


def test_a_message_that_comes_long_before_the_due_time_is_another_one(topology: Topology) -> None:
    requested(store(topology, message(), "work", timedelta(minutes=1)))
    assert take.Tombstones(ScheduledChange.objects.all()).find(message()) is None


def test_what_stands_for_a_later_change_is_not_taken_for_an_earlier_one(topology: Topology) -> None:
    change = requested(store(topology, message(own=7), "work", SOON))
    found = take.Tombstones(ScheduledChange.objects.all())
    assert found.find(message(own=change.pk)) is None
    assert found.find(message(own=8)) is None
    assert found.find(message(own=7)) == change


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_copy_of_one_of_two_equal_messages_is_not_taken_for_the_other(
    topology: Topology, is_confirmed: bool
) -> None:
    """It was lost so: the second message was dropped as well, as one that was taken before."""
    rows = [store(topology, message(), "work", SOON) for _ in range(2)]
    assert not any(one.problem for one in request(None, rows, ChangeKind.CANCEL))
    first, second = ScheduledChange.objects.order_by("pk")
    first.copied_at = timezone.now() if is_confirmed else None
    first.save()
    found = take.Tombstones(ScheduledChange.objects.all())
    assert found.find(message(own=first.pk)) is None
    assert found.find(message()) == first
    found.taken_changes.add(first.pk)
    assert found.find(message()) == second


def test_a_copy_can_be_changed_again_after_it_was_published(topology: Topology) -> None:
    row = store(topology, message(), "work", SOON)
    first = requested(row)
    assert take.finish(first, message())
    ScheduledMessage.objects.filter(pk=row.pk).update(left_at=timezone.now())
    again = requested(store(topology, message(own=first.pk), "work", SOON))
    found = take.Tombstones(ScheduledChange.objects.all())
    assert found.find(message(own=first.pk)) == again


def test_a_cancelled_message_that_its_level_dead_lettered_twice_is_taken_twice(
    topology: Topology,
) -> None:
    """A broker that is killed publishes it again; another of the same content is another trip."""
    requested(store(topology, message(), "work", SOON))
    found = take.Tombstones(ScheduledChange.objects.all())
    change = found.find(died(0))
    assert change is not None
    found.taken_changes.add(change.pk)
    assert (found.find(died(0)), found.find(died(1))) == (change, None)
    assert take.finish(change, message())
    found.reload()
    assert (found.find(died(0)), found.find(died(1))) == (change, None)
    found = take.Tombstones(ScheduledChange.objects.all())
    assert (found.find(died(0)), found.find(died(1))) == (change, None)
    assert found.find(replace(died(1), redelivered=True)) == change


def test_of_equal_messages_that_come_again_each_finds_its_own_change(topology: Topology) -> None:
    rows = [store(topology, message(), "work", SOON) for _ in range(2)]
    assert not any(one.problem for one in request(None, rows, ChangeKind.CANCEL))
    ScheduledChange.objects.update(
        state=ChangeState.DONE, ended_at=timezone.now(), trip=take.trip_of(died(0))
    )
    tombstones = take.Tombstones(ScheduledChange.objects.all())
    found = set()
    for _ in range(2):
        change = tombstones.find(died(0))
        assert change is not None
        tombstones.taken_changes.add(change.pk)
        found.add(change.pk)
    assert len(found) == 2
    assert tombstones.find(died(0)) is not None


@pytest.mark.parametrize("is_redelivered", [False, True])
def test_an_equal_message_whose_change_was_undone_is_not_lost(
    topology: Topology, is_redelivered: bool
) -> None:
    rows = [store(topology, message(), "work", SOON) for _ in range(2)]
    assert not any(one.problem for one in request(None, rows, ChangeKind.CANCEL))
    first, second = ScheduledChange.objects.all()
    assert undo(None, second)
    tombstones = take.Tombstones(ScheduledChange.objects.all())
    assert tombstones.find(died(0)) == first
    tombstones.taken_changes.add(first.pk)
    assert take.finish(first, died(0))
    tombstones.reload()
    assert tombstones.find(replace(died(0), redelivered=is_redelivered)) is None
    again = take.Tombstones(ScheduledChange.objects.all())
    assert again.find(replace(died(0), redelivered=is_redelivered)) is None


def test_a_message_that_is_cancelled_again_after_an_undo_is_known_again(
    topology: Topology,
) -> None:
    row = store(topology, message(), "work", SOON)
    assert undo(None, requested(row))
    requested(row)
    change = take.Tombstones(ScheduledChange.objects.all()).find(died(0))
    assert change is not None
    assert take.finish(change, died(0))
    again = take.Tombstones(ScheduledChange.objects.all())
    assert again.find(died(0)) == change
    assert again.find(replace(died(1), redelivered=True)) == change


@pytest.mark.parametrize("kind", [ChangeKind.CANCEL, ChangeKind.RESCHEDULE])
def test_a_copy_of_a_message_that_is_being_changed_waits_for_its_end(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, kind: ChangeKind
) -> None:
    change = requested(store(topology, message(), "work", SOON), kind)
    change.new_due_at = timezone.now() + timedelta(hours=1)
    executor = executor_of(change)
    published: list[int] = []

    def publish_again(some: Sequence[Intercepted]) -> None:
        published.extend(one.tag for one in some)
        executor.outcomes.extend(Outcome(one, take.finish(one.change, died(0))) for one in some)

    monkeypatch.setattr(executor, "_publish_again", publish_again)
    executor._move_at = time.monotonic() + 3600
    executor.carry_out(Intercepted(1, change, died(0)))
    executor.carry_out(Intercepted(2, change, died(0)))
    executor._carry_out()
    if kind == ChangeKind.RESCHEDULE:
        assert not executor.outcomes
        executor._move_at = 0.0
        executor._carry_out()
        assert published == [1]
    assert [(one.intercepted.tag, one.is_taken) for one in executor.outcomes] == [
        (1, True),
        (2, True),
    ]


def test_a_copy_of_a_message_whose_change_was_undone_goes_on_too(topology: Topology) -> None:
    change = requested(store(topology, message(), "work", SOON))
    executor = executor_of(change)
    assert undo(None, change)
    for tag in (1, 2):
        executor.carry_out(Intercepted(tag, change, died(0)))
        executor._carry_out()
    assert [one.is_taken for one in executor.outcomes] == [False, False]


def test_equal_messages_are_changed_together_whichever_else_is_chosen(topology: Topology) -> None:
    left = store(topology, message(), "work", SOON)
    ScheduledMessage.objects.filter(pk=left.pk).update(left_at=timezone.now())
    left.refresh_from_db()
    both = [store(topology, message(), "work", SOON) for _ in range(2)]
    verdicts = check.check([left, both[0]], ChangeKind.CANCEL, timezone.now())
    assert "cannot distinguish them" in verdicts[1].problem
    assert not any(one.problem for one in check.check(both, ChangeKind.CANCEL, timezone.now()))


def test_no_copy_is_published_of_a_message_that_is_due(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = requested(store(topology, message(), "work", SOON), ChangeKind.DELIVER_NOW)
    monkeypatch.delattr(copies, "publisher")
    ScheduledChange.objects.update(due_at=timezone.now(), copy_begun_at=timezone.now())
    assert change.interception is not None
    copies.publish_copies(change.interception, lambda: None)
    change.refresh_from_db()
    # One that died may have published it.
    assert (change.state, change.may_be_duplicated) == (ChangeState.FAILED, True)


def test_a_missed_message_with_a_copy_may_be_duplicated(topology: Topology) -> None:
    change = requested(store(topology, message(), "work", SOON), ChangeKind.DELIVER_NOW)
    other = requested(store(topology, message(b"b"), "work", SOON))
    ScheduledChange.objects.update(due_at=timezone.now() - timedelta(minutes=1))
    ScheduledChange.objects.filter(pk=change.pk).update(copy_begun_at=timezone.now())
    take.abandon(ScheduledChange.objects.all(), "missed")
    rows = ScheduledChange.objects.values_list("pk", "state", "may_be_duplicated")
    assert set(rows) == {
        (change.pk, ChangeState.MISSED, True),
        (other.pk, ChangeState.MISSED, False),
    }


def executor_of(change: ScheduledChange) -> Executor:
    assert change.interception is not None
    claimed = work.claim_this(change.interception.work, "worker")
    assert claimed is not None
    session = Session(change.interception, work.lease_of(claimed), Event(), lambda: None)
    fake = SimpleNamespace(declare=lambda objects: None, bindings_from=lambda exchange: [])
    return Executor(session, cast(Management, fake))


@pytest.mark.parametrize(
    ("grace", "state"),
    [(timedelta(hours=1), ChangeState.PENDING), (timedelta(seconds=-1), ChangeState.MISSED)],
    ids=["opened just now", "open for the grace"],
)
def test_only_an_interception_that_was_open_for_the_grace_gives_a_change_up(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, grace: timedelta, state: ChangeState
) -> None:
    change = requested(store(topology, message(), "work", SOON))
    ScheduledChange.objects.update(due_at=timezone.now() - timedelta(minutes=1))
    for name in ("is_back", "leads_on", "rejects_publishes"):
        monkeypatch.setattr(interception, name, lambda *_: False)
    monkeypatch.setattr(take, "GRACE", grace)
    executor = executor_of(change)
    executor.is_quiet = True
    executor._refresh()
    change.refresh_from_db()
    assert change.state == state


def test_rescheduled_messages_are_published_together_unless_one_is_due_at_once(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = timezone.now() + timedelta(hours=1)
    kind = ChangeKind.RESCHEDULE
    changes = [requested(store(topology, message(b"%d" % n), "work", SOON), kind) for n in range(4)]
    for change in changes:
        change.new_due_at = later
    executor = executor_of(changes[0])
    published: list[list[int]] = []
    monkeypatch.setattr(
        executor, "_publish_again", lambda some: published.append([one.tag for one in some])
    )

    def come(*tags: int) -> None:
        for tag in tags:
            executor.carry_out(Intercepted(tag, changes[tag], message()))
            executor._carry_out()

    come(0, 1, 2)
    assert published == [[0]]
    changes[3].new_due_at = timezone.now()
    come(3)
    assert published == [[0], [1, 2, 3]]


def test_a_replaced_binding_is_not_declared_meanwhile(topology: Topology) -> None:
    requested(store(topology, message(), "work", SOON))
    other = replace(BINDING, destination="other")
    declares = Definitions.of([BINDING, other])
    assert Interception.without_replaced(declares, topology.broker) == declares
    Interception.objects.update(state=InterceptionState.OPEN)
    assert Interception.without_replaced(declares, topology.broker) == Definitions.of([other])


def test_messages_that_are_being_migrated_are_not_changed(topology: Topology) -> None:
    row = store(topology, message(), "work", SOON)
    own = work.create("migrate", topology.pk, broker=topology.broker, user=None)
    running = DelayMigration.objects.create(source=topology, target=topology, work=own)
    (verdict,) = check.check([row], ChangeKind.CANCEL, timezone.now())
    assert "are being migrated" in verdict.problem
    # One that is paused and has begun nothing touches none of them.
    work.pause(own)
    (verdict,) = check.check([row], ChangeKind.CANCEL, timezone.now())
    assert not verdict.problem
    MovedMessage.objects.create(migration=running, key="m")
    (verdict,) = check.check([row], ChangeKind.CANCEL, timezone.now())
    assert "are being migrated" in verdict.problem


def test_the_content_of_a_row_is_that_of_its_message() -> None:
    assert content_of(message()) == content_of(message(own=1))
