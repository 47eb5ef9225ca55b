"""Starting, pausing, resuming and cancelling replays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from delayboard.dead_letters.replay import batch_state
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.models import BatchState, ParkedMessage, ParkedState, ReplayBatch
from tests.builders import eventually, make_user
from tests.delayboard.builders import a_message, a_route, frozen, parked, started, states
from topology import work
from topology.models import AuditEntry, Broker, Role, Work, WorkState

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def a_draft(user: User, broker: Broker, *bodies: bytes) -> ReplayBatch:
    return frozen(user, broker, parked(broker, *[a_message(body) for body in bodies or [b"1"]]))


def now_of(batch: ReplayBatch) -> ReplayBatch:
    return ReplayBatch.objects.select_related("work").get(pk=batch.pk)


def parked_messages(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("parked_message__state", flat=True))


def test_a_draft_is_started_once(user: User, broker: Broker) -> None:
    batch = a_draft(user, broker, b"1", b"2")
    batch_state.start(user, batch, despite_verdict=False)
    row = now_of(batch)
    assert row.work is not None
    assert (row.work.kind, row.work.subject, row.work.total) == ("replay", batch.pk, 2)
    assert (row.state, row.started_by) == (BatchState.RUNNING, user)
    assert parked_messages(batch) == ["replaying"] * 2
    entry = AuditEntry.objects.get(action="replay started")
    assert entry.details == {"batch": batch.pk, "messages": 2, "bad_verdicts": {}}
    with pytest.raises(BatchError, match="started already"):
        batch_state.start(user, batch, despite_verdict=False)
    assert Work.objects.count() == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (BatchState.PREPARING, "dry run is not complete"),
        (BatchState.CANCELLED, "was cancelled"),
        (BatchState.FAILED, "could not be prepared"),
    ],
)
def test_only_a_draft_can_be_started(
    user: User, broker: Broker, state: BatchState, said: str
) -> None:
    batch = a_draft(user, broker)
    ReplayBatch.objects.update(state=state)
    with pytest.raises(BatchError, match=said):
        batch_state.start(user, batch, despite_verdict=True)
    assert parked_messages(batch) == ["parked"]


def test_bad_verdicts_are_named_and_need_a_yes(user: User, broker: Broker) -> None:
    found = parked(broker, *[a_message(b"%d" % number) for number in range(6)])
    ends = ("loops", "unroutable", "guarded", "lost", "delivered", "delivered")
    routes = [a_route("x", end, ending=end, is_good=place > 3) for place, end in enumerate(ends)]
    batch = frozen(user, broker, found, *routes)
    reported = (
        "4 messages have a bad verdict: 1 had 3 or more replays already, 1 would return to the "
        "source queue, 1 would be dropped by RabbitMQ, 1 would be unroutable: no queue matches. "
        "Type “yes” to replay all messages anyway."
    )
    with pytest.raises(BatchError) as raised:
        batch_state.start(user, batch, despite_verdict=False)
    assert str(raised.value) == reported
    assert now_of(batch).is_draft
    batch_state.start(user, batch, despite_verdict=True)
    bad = {"loops": 1, "unroutable": 1, "guarded": 1, "lost": 1}
    assert AuditEntry.objects.get(action="replay started").details["bad_verdicts"] == bad


def test_an_undo_window_keeps_the_worker_off(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"], undo_seconds=60)
    row = now_of(batch)
    assert (row.state, parked_messages(batch)) == (BatchState.WAITING, ["replaying"])
    assert row.publish_at is not None
    assert row.publish_at - timezone.now() > timedelta(seconds=50)
    assert work.claim(("replay",), "worker") is None
    batch_state.cancel(user, batch)
    assert (now_of(batch).state, parked_messages(batch)) == (BatchState.CANCELLED, ["parked"])
    assert states(batch) == ["cancelled"]


def test_a_waiting_one_can_be_paused_and_waits_again(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"], undo_seconds=60)
    batch_state.pause(user, batch)
    assert now_of(batch).state == BatchState.PAUSED
    batch_state.resume(user, batch)
    assert now_of(batch).state == BatchState.WAITING
    assert work.claim(("replay",), "worker") is None
    ReplayBatch.objects.update(publish_at=timezone.now())
    batch_state.pause(user, batch)
    batch_state.resume(user, batch)
    assert now_of(batch).state == BatchState.RUNNING
    assert work.claim(("replay",), "worker") is not None


def test_a_paused_one_is_left_alone_until_it_is_resumed(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    batch_state.pause(user, batch)
    row = now_of(batch)
    assert (row.state, row.state_why) == (BatchState.PAUSED, "Paused by ann.")
    assert work.claim(("replay",), "worker") is None
    with pytest.raises(BatchError, match="paused already"):
        batch_state.pause(user, batch)
    batch_state.resume(user, batch)
    assert (now_of(batch).state, now_of(batch).state_why) == (BatchState.RUNNING, "")
    with pytest.raises(BatchError, match="Only a paused replay"):
        batch_state.resume(user, batch)
    assert work.claim(("replay",), "worker") is not None
    reported = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert list(reported) == ["replay started", "replay paused", "replay resumed"]


@pytest.mark.parametrize("state", [BatchState.WATCHING, BatchState.PAUSED])
def test_a_person_goes_on_without_waiting_for_the_first_ones(
    user: User, broker: Broker, state: BatchState
) -> None:
    batch = started(user, broker, [b"1", b"2"], canary=1)
    later = timezone.now() + timedelta(hours=1)
    ReplayBatch.objects.update(state=state, canary_until=later)
    Work.objects.update(not_before_at=later)
    batch_state.resume(user, batch)
    row = now_of(batch)
    assert row.state == BatchState.RUNNING
    assert row.canary_until is not None
    assert row.canary_until <= timezone.now()
    assert work.claim(("replay",), "worker") is not None


def test_a_worker_that_is_at_it_is_asked_to_pause_or_end(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    work.claim(("replay",), "worker")
    batch_state.pause(user, batch)
    own = now_of(batch).work
    assert own is not None
    assert (now_of(batch).state, own.pause_requested) == (BatchState.RUNNING, True)
    batch_state.cancel(user, batch)
    row = now_of(batch)
    assert row.work is not None
    assert (row.state, row.work.cancel_requested) == (BatchState.RUNNING, True)
    assert states(batch) == ["pending"]
    with pytest.raises(BatchError, match="being cancelled already"):
        batch_state.cancel(user, batch)


def test_a_worker_that_died_is_not_waited_for(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    claimed = work.claim(("replay",), "worker")
    assert claimed is not None
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    batch_state.pause(user, batch)
    assert now_of(batch).state == BatchState.PAUSED
    assert work.claim(("replay",), "another") is None
    assert not work.lease_of(claimed).end(WorkState.DONE)


def test_a_draft_can_be_cancelled_and_its_parked_messages_were_never_claimed(
    user: User, broker: Broker
) -> None:
    batch = a_draft(user, broker, b"1", b"2")
    ParkedMessage.objects.filter(
        pk__in=batch.items.filter(position=1).values("parked_message")
    ).update(state=ParkedState.REPLAYING)
    batch_state.cancel(user, batch)
    row = now_of(batch)
    assert (row.state, row.cancelled, row.state_why) == (
        BatchState.CANCELLED,
        2,
        "Cancelled by ann.",
    )
    assert parked_messages(batch) == ["replaying", "parked"]
    assert work.claim(("replay",), "worker") is None


def test_what_has_ended_is_neither_paused_nor_cancelled(user: User, broker: Broker) -> None:
    draft = a_draft(user, broker)
    with pytest.raises(BatchError, match="was not started yet"):
        batch_state.pause(user, draft)
    with pytest.raises(BatchError, match="was not started yet"):
        batch_state.resume(user, draft)
    batch_state.cancel(user, draft)
    for press in (batch_state.pause, batch_state.cancel):
        with pytest.raises(BatchError, match="has ended: it is cancelled"):
            press(user, draft)


def test_one_that_is_being_prepared_is_not_paused_and_is_cancelled_with_its_work(
    user: User, broker: Broker
) -> None:
    batch = a_draft(user, broker)
    preparing = work.create("replay-prepare", batch.pk, broker=broker, user=user)
    ReplayBatch.objects.update(state=BatchState.PREPARING, work=preparing)
    with pytest.raises(BatchError, match="was not started yet"):
        batch_state.pause(user, batch)
    batch_state.cancel(user, batch)
    assert (now_of(batch).state, states(batch)) == (BatchState.CANCELLED, ["cancelled"])
    assert work.claim(("replay", "replay-prepare"), "worker") is None


def at_once(*presses: Callable[[], None]) -> list[str]:
    """Press in threads at the same time; what was refused."""
    barrier = threading.Barrier(len(presses))
    refused: list[str] = []

    def act(press: Callable[[], None]) -> None:
        try:
            barrier.wait(60)
            press()
        except BatchError as error:
            refused.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(press,)) for press in presses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return refused


@pytest.mark.django_db(transaction=True)
def test_of_two_who_press_at_once_one_is_told(user: User, broker: Broker) -> None:
    other = make_user("bob", Role.OPERATOR, broker)
    batch = a_draft(user, broker, b"1", b"2")

    def both(press: Callable[[User, ReplayBatch], None]) -> list[str]:
        return at_once(lambda: press(user, batch), lambda: press(other, batch))

    def start(who: User, of: ReplayBatch) -> None:
        batch_state.start(who, of, despite_verdict=False)

    assert both(start) == ["This replay was started already."]
    assert Work.objects.count() == 1
    assert both(batch_state.pause) == ["This replay is paused already."]
    assert both(batch_state.resume) == [
        "Only a paused replay can be resumed. This replay is running."
    ]
    assert both(batch_state.cancel) == ["This replay has ended: it is cancelled."]
    row = now_of(batch)
    assert (row.cancelled, parked_messages(batch)) == (2, ["parked"] * 2)


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_whoever_changes_one_that_was_just_started_holds_its_new_work(
    user: User, broker: Broker
) -> None:
    batch = a_draft(user, broker)
    held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                batch_state._lock_batch(batch)
                held.set()
                is_over.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    with transaction.atomic():
        batch_state.start(user, batch, despite_verdict=False)
        thread.start()
        eventually(somebody_waits, "the other waits for the batch")
    assert held.wait(60)
    with transaction.atomic():
        free = list(Work.objects.select_for_update(skip_locked=True))
    is_over.set()
    thread.join(60)
    assert free == []


@pytest.mark.django_db(transaction=True)
def test_two_overlapping_replays_started_at_once_share_no_message(
    user: User, broker: Broker
) -> None:
    found = parked(broker, *[a_message(b"%d" % number) for number in range(60)])
    one, two = frozen(user, broker, found[:40]), frozen(user, broker, found[20:])
    refused = at_once(
        lambda: batch_state.start(user, one, despite_verdict=False),
        lambda: batch_state.start(user, two, despite_verdict=False),
    )
    assert refused == []
    claimed = [
        parked_message
        for batch in (one, two)
        for parked_message in batch.items.filter(state="pending").values_list(
            "parked_message", flat=True
        )
    ]
    assert sorted(claimed) == [parked_message.pk for parked_message in found]
    whys = {now_of(one).state_why, now_of(two).state_why}
    assert whys - {""}
    assert all("20 with “The message is in replay" in why for why in whys - {""})
