"""Leases on the real database: one holder at a time, and the old one can write nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from topology import work
from topology.broker.errors import Unreachable
from topology.models import Work, WorkState
from topology.models.work import ALERTS, TASK

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]
SECOND = timedelta(seconds=1)


def asked(kind: str = "replay") -> Work:
    return work.create(kind, 7, broker=None, user=None, total=3)


def claimed(owner: str = "one") -> Work:
    found = work.claim(("replay",), owner)
    assert found is not None
    return found


def expire(row: Work) -> None:
    Work.objects.filter(pk=row.pk).update(leased_until_at=timezone.now() - SECOND)


def in_threads(number: int, act: Callable[[int], None]) -> None:
    """Run `act` in so many threads that begin at once; the first error is raised here."""
    barrier = threading.Barrier(number)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            barrier.wait(60)
            act(place)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def test_a_claim_takes_the_oldest_of_its_kinds_and_leases_it() -> None:
    asked("nightly")
    first, second = asked(), asked()
    row = claimed()
    assert (row.pk, row.state, row.owner) == (first.pk, WorkState.RUNNING, "one")
    assert (row.fence, row.attempts, row.total, row.subject) == (1, 1, 3, 7)
    assert row.leased_until_at is not None
    assert timedelta(0) < row.leased_until_at - timezone.now() <= work.LEASE
    assert claimed().pk == second.pk
    assert work.claim(("replay",), "one") is None


@pytest.mark.parametrize("skew", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_host_whose_clock_is_wrong_keeps_its_leases_and_respects_those_of_others(
    skew: timedelta,
) -> None:
    asked()
    with time_machine.travel(timezone.now() + skew):
        row = claimed("wrong")
        leases = work.Leases(TASK, "wrong")
        assert leases.hold({1, 2}) == {1, 2}
        assert work.lease_of(row).renew(1, 3)
        assert work.claim_this(row, "wrong too") is None
    assert work.claim_this(row, "right") is None
    assert work.leased(TASK) == {1, 2}
    assert work.Leases(TASK, "right").hold({1, 2}) == frozenset()
    with time_machine.travel(timezone.now() + skew):
        work.lease_of(row).give_back("No broker.", after=30 * SECOND)
        leases.release({1})
    row.refresh_from_db()
    assert row.not_before_at is not None
    assert timedelta(0) < row.not_before_at - timezone.now() <= 30 * SECOND
    assert work.claim_this(row, "right") is None
    assert work.Leases(TASK, "right").hold({1, 2}) == {1}
    Work.objects.update(leased_until_at=timezone.now() - SECOND)
    with time_machine.travel(timezone.now() + skew):
        assert work.leased(TASK) == set()


def test_of_many_that_claim_at_once_exactly_one_gets_each() -> None:
    rows = [asked() for _ in range(3)]
    got: list[tuple[int, int]] = []

    def take(place: int) -> None:
        while (row := work.claim(("replay",), f"worker {place}")) is not None:
            got.append((row.pk, row.fence))

    in_threads(4, take)
    assert sorted(got) == [(row.pk, 1) for row in rows]


def test_a_certain_work_is_taken_and_no_other() -> None:
    first, second = asked(), asked()
    row = work.claim_this(second, "shell")
    assert row is not None
    assert (row.pk, row.state, row.owner, row.fence) == (second.pk, WorkState.RUNNING, "shell", 1)
    assert claimed().pk == first.pk


def test_a_certain_work_that_is_held_or_ended_or_not_due_is_not_taken() -> None:
    row = asked()
    held = claimed("worker")
    assert work.claim_this(row, "shell") is None
    held.refresh_from_db()
    assert work.claim_this(held, "shell") is None
    work.lease_of(held).give_back("no broker", after=timedelta(hours=1))
    held.refresh_from_db()
    assert work.claim_this(held, "shell") is None
    Work.objects.update(not_before_at=timezone.now() - SECOND)
    row = work.claim_this(held, "shell") or pytest.fail("it is due")
    work.lease_of(row).end(WorkState.DONE)
    row.refresh_from_db()
    assert work.claim_this(row, "shell") is None


def test_of_many_that_claim_a_certain_work_at_once_one_gets_it() -> None:
    row = asked()
    got: list[int] = []

    def take(place: int) -> None:
        if taken := work.claim_this(Work.objects.get(pk=row.pk), f"shell {place}"):
            got.append(taken.fence)

    in_threads(4, take)
    assert got == [1]


def test_an_expired_lease_is_taken_over_by_one_with_a_higher_fence() -> None:
    asked()
    old = claimed("old")
    assert work.claim(("replay",), "new") is None
    expire(old)
    got: list[Work] = []

    def take(place: int) -> None:
        if row := work.claim(("replay",), f"new {place}"):
            got.append(row)

    in_threads(4, take)
    (new,) = got
    assert (new.pk, new.fence, new.attempts) == (old.pk, old.fence + 1, 2)


def test_the_old_holder_is_stopped_and_changes_nothing() -> None:
    asked()
    old = work.lease_of(claimed("old"))
    expire(Work.objects.get())
    new = work.lease_of(claimed("new"))
    with pytest.raises(work.Stopped, match="Another worker took over this task"):
        old.pulse(2, 3)
    assert not old.end(WorkState.FAILED, "no")
    assert not old.give_back("no", after=SECOND)
    row = Work.objects.get()
    assert (row.state, row.owner, row.done, row.error) == (WorkState.RUNNING, "new", 0, "")
    new.pulse(1, 3)
    assert new.end(WorkState.DONE)


def test_the_same_worker_with_an_older_claim_is_an_old_holder_too() -> None:
    asked()
    before = work.lease_of(claimed("same"))
    expire(Work.objects.get())
    claimed("same")
    with pytest.raises(work.Stopped):
        before.pulse(1, 3)


def test_a_pulse_renews_the_lease_and_tells_the_progress() -> None:
    asked()
    lease = work.lease_of(claimed())
    Work.objects.update(leased_until_at=timezone.now() + SECOND)
    lease.pulse(2, 5)
    row = Work.objects.get()
    assert (row.done, row.total) == (2, 5)
    assert row.leased_until_at is not None
    assert row.leased_until_at - timezone.now() > work.LEASE - 5 * SECOND


def test_an_end_is_final() -> None:
    asked()
    lease = work.lease_of(claimed())
    assert lease.end(WorkState.FAILED, "broke")
    row = Work.objects.get()
    assert (row.state, row.error, row.leased_until_at) == (WorkState.FAILED, "broke", None)
    assert row.ended_at is not None
    assert not lease.end(WorkState.DONE)
    with pytest.raises(work.Stopped):
        lease.pulse(1, 1)
    assert work.claim(("replay",), "two") is None


def test_what_is_given_back_waits_for_its_time_and_keeps_its_reason() -> None:
    asked()
    assert work.lease_of(claimed()).give_back("no broker", after=timedelta(hours=1))
    row = Work.objects.get()
    assert (row.state, row.error, row.leased_until_at) == (WorkState.WAITING, "no broker", None)
    assert work.claim(("replay",), "two") is None
    Work.objects.update(not_before_at=timezone.now() - SECOND)
    assert claimed("two").fence == 2


def test_what_waits_is_cancelled_at_once() -> None:
    row = asked()
    work.cancel(row)
    row.refresh_from_db()
    assert (row.state, row.ended_at is not None) == (WorkState.CANCELLED, True)
    assert work.claim(("replay",), "one") is None


def test_what_runs_is_stopped_at_its_next_pulse() -> None:
    asked()
    row = claimed()
    lease = work.lease_of(row)
    work.cancel(row)
    with pytest.raises(work.Stopped, match=r"Cancelled\."):
        lease.pulse(1, 3)
    assert lease.end(WorkState.CANCELLED, "Cancelled.")


def test_a_cancelled_work_whose_holder_died_is_stopped_by_the_next_one() -> None:
    asked()
    row = claimed()
    work.cancel(row)
    expire(row)
    with pytest.raises(work.Stopped, match=r"Cancelled\."):
        work.lease_of(claimed("two")).pulse(0, 3)


def test_what_has_ended_cannot_be_cancelled() -> None:
    asked()
    row = claimed()
    work.lease_of(row).end(WorkState.DONE)
    work.cancel(row)
    row.refresh_from_db()
    assert (row.state, row.cancel_requested) == (WorkState.DONE, False)


@pytest.mark.parametrize(
    ("raised", "state", "error", "waits"),
    [
        (None, WorkState.DONE, "", None),
        (work.Failed("No queue."), WorkState.FAILED, "No queue.", None),
        (work.Later("Not yet.", after=SECOND), WorkState.WAITING, "Not yet.", SECOND),
        (work.Ending(), WorkState.WAITING, "", timedelta(0)),
        (Unreachable("Gone."), WorkState.WAITING, "Gone.", work.RETRY_AFTER),
    ],
)
def test_an_attempt_gives_each_outcome_one_meaning(
    raised: Exception | None, state: WorkState, error: str, waits: timedelta | None
) -> None:
    asked()

    def do(own: Work, **_: object) -> None:
        if raised is not None:
            raise raised

    row, now = claimed(), timezone.now()
    work.attempt(do, row, stop=threading.Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (state, error)
    if waits is None:
        assert row.not_before_at is None
    else:
        assert row.not_before_at is not None
        # SQLite's clock has milliseconds.
        rounded = now.replace(microsecond=now.microsecond // 1000 * 1000)
        assert rounded + waits <= row.not_before_at < now + waits + SECOND


def test_an_attempt_that_is_cancelled_ends_and_one_that_lost_its_lease_writes_nothing() -> None:
    asked()
    row = claimed()
    work.cancel(row)

    def do(own: Work, **_: object) -> None:
        work.lease_of(own).pulse(1, 3)

    work.attempt(do, row, stop=threading.Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (WorkState.CANCELLED, "Cancelled.")
    asked()
    lost = claimed()
    expire(lost)
    later = claimed("another")
    work.attempt(do, lost, stop=threading.Event())
    later.refresh_from_db()
    assert (later.state, later.owner) == (WorkState.RUNNING, "another")


def test_a_broker_error_after_the_work_was_returned_is_raised() -> None:
    asked()

    def do(own: Work, **_: object) -> None:
        work.lease_of(own).give_back("Gone.", after=timedelta(0))
        raise Unreachable("Gone.")

    row = claimed()
    with pytest.raises(Unreachable):
        work.attempt(do, row, stop=threading.Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (WorkState.WAITING, "Gone.")


def test_of_several_that_want_to_be_alone_one_is() -> None:
    inside: list[int] = []
    refused: list[int] = []
    barrier = threading.Barrier(6)

    def enter(place: int) -> None:
        with work.alone(ALERTS, 0) as lease:
            (refused if lease is None else inside).append(place)
            barrier.wait(60)

    in_threads(6, enter)
    assert (len(inside), len(refused)) == (1, 5)
    with work.alone(ALERTS, 0) as lease, work.alone(ALERTS, 1) as other:
        assert lease is not None
        assert other is not None
        assert lease.renew(1, 2)
    assert not lease.renew(1, 2)
    assert Work.objects.filter(kind=ALERTS).count() == 2


def test_who_was_alone_for_too_long_is_followed_by_another() -> None:
    with work.alone(ALERTS, 0, lasts=3 * SECOND) as lease:
        assert lease is not None
        row = Work.objects.get()
        assert lease.renew(0, 0)
        assert row.leased_until_at is not None
        assert row.leased_until_at <= timezone.now() + 3 * SECOND
        expire(row)
        with work.alone(ALERTS, 0) as next_one:
            assert next_one is not None
            assert not lease.renew(0, 0)
            assert next_one.renew(0, 0)


def test_paused_work_is_given_back_and_claimed_only_to_be_cancelled_or_when_it_is_resumed() -> None:
    asked()
    row = claimed()
    work.pause(row)

    def do(own: Work, **_: object) -> None:
        work.lease_of(own).pulse(1, 3)

    work.attempt(do, row, stop=threading.Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (WorkState.WAITING, "")
    assert work.claim(("replay",), "another") is None
    Work.objects.update(cancel_requested=True)
    work.attempt(do, claimed("another"), stop=threading.Event())
    row.refresh_from_db()
    assert row.state == WorkState.CANCELLED
    other = asked()
    work.pause(other)
    assert work.claim(("replay",), "one") is None
    work.resume(other)
    assert claimed().pk == other.pk


def test_work_that_pauses_itself_waits_with_its_reason_until_it_is_resumed() -> None:
    asked()

    def do(own: Work, **_: object) -> None:
        raise work.Paused("Three remain.")

    row = claimed()
    work.attempt(do, row, stop=threading.Event())
    row.refresh_from_db()
    assert (row.error, row.pause_requested) == ("Three remain.", True)
    work.resume(row)
    assert claimed().error == ""


def a_process(owner: str) -> work.Leases:
    return work.Leases(TASK, owner)


def test_each_lease_is_of_one_process_and_goes_to_another_when_it_is_left() -> None:
    one, two = a_process("one"), a_process("two")
    assert one.hold([1, 2, 3]) == {1, 2, 3}
    assert two.hold([1, 2, 3]) == set()
    one.release([2])
    again = a_process("two")
    assert again.hold([1, 2, 3]) == {2}
    # What is wanted no longer is left, and another has it.
    assert one.hold([1]) == {1}
    assert a_process("three").hold([3]) == {3}


def test_a_process_that_returns_under_its_name_has_its_leases_at_once_and_others_late() -> None:
    a_process("one").hold([1, 2])
    fences = list(Work.objects.order_by("subject").values_list("fence", flat=True))
    assert a_process("two").hold([1, 2]) == set()
    assert a_process("one").hold([1, 2]) == {1, 2}
    assert list(Work.objects.order_by("subject").values_list("fence", flat=True)) == fences
    for row in Work.objects.all():
        expire(row)
    assert a_process("two").hold([1, 2]) == {1, 2}
    assert a_process("one").hold([1, 2]) == set()
    assert all(
        now > then
        for now, then in zip(
            Work.objects.order_by("subject").values_list("fence", flat=True), fences, strict=True
        )
    )


def test_processes_share_and_take_more_than_their_share_of_what_nobody_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = range(20)
    one, two = a_process("one"), a_process("two")
    assert len(one.hold(wanted)) == 20
    monkeypatch.setattr(work, "RENEWED_AFTER_SECONDS", 0.0)
    assert len(one.hold(wanted, count_sharers=lambda: 2)) == 10
    assert len(two.hold(wanted, count_sharers=lambda: 2)) == 10
    two.release(wanted)
    assert len(one.hold(wanted, count_sharers=lambda: 2)) == 10
    monkeypatch.setattr(work, "LEFT_AFTER_SECONDS", 0.0)
    assert len(one.hold(wanted, count_sharers=lambda: 2)) == 20


def test_of_many_that_claim_leases_at_once_one_gets_each() -> None:
    held: dict[int, frozenset[int]] = {}

    def hold(place: int) -> None:
        held[place] = a_process(f"p{place}").hold(range(9))

    in_threads(6, hold)
    assert sorted(one for some in held.values() for one in some) == list(range(9))


def test_leases_that_nothing_changes_cost_no_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    one = a_process("one")
    one.hold(range(200))
    with django_assert_num_queries(0):
        assert len(one.hold(range(200))) == 200


def test_what_a_thread_still_does_stays_ours_until_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "RENEWED_AFTER_SECONDS", 0.0)
    wanted, one, two = range(20), a_process("one"), a_process("two")
    one.hold(wanted)
    kept = one.hold(wanted, busy=wanted, count_sharers=lambda: 2)
    assert len(kept) == 10
    assert two.hold(wanted, count_sharers=lambda: 2) == set()
    first, *others = set(wanted) - kept
    one.release([first])
    assert one.hold(wanted, busy=wanted, count_sharers=lambda: 2) == kept
    assert two.hold(wanted, count_sharers=lambda: 2) == {first}
    # What is wanted again before it was released is not done again before.
    assert one.hold([first], busy=wanted) == set()
    assert one.hold(wanted, busy=wanted) == set()
    assert a_process("three").hold(others) == set()


def test_leases_are_over_when_they_could_not_be_renewed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = a_process("one")
    one.hold([1])
    assert work.leased(TASK) == {1}
    before = one.are_over
    monkeypatch.setattr(work, "monotonic", lambda: time.monotonic() + 21)
    assert (before, one.are_over) == (False, True)
    for row in Work.objects.all():
        expire(row)
    assert work.leased(TASK) == set()
