"""Long work as rows: claimed by one conditional update, kept by a lease, fenced by a number.

All moments of a row are of the database's clock: the clocks of two hosts may differ by more than a
lease lasts.

What only one process at a time does with this database has a row too (`alone`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now
from structlog.contextvars import bound_contextvars

from topology.broker.errors import BrokerError
from topology.models import Broker, Work, WorkState
from topology.models.read_only import finishing, refuse_read_only
from topology.models.work import FINISHED_ONCE_BEGUN

LEASE = timedelta(seconds=20)
# Time until work is tried again that failed for a reason that may pass.
RETRY_AFTER = timedelta(seconds=5)
RENEWED_AFTER_SECONDS = 4.0
# Seconds after which any process may claim what none has claimed as a part of its share.
LEFT_AFTER_SECONDS = 9.0


class Stopped(Exception):
    """The work shall not go on: cancelled, or its lease is another's now."""


class Failed(Exception):
    """The work cannot come to its end; the message says why."""


class Later(Exception):
    """The work cannot go on now; the message says why, "" for no reason that people see."""

    def __init__(self, why: str = "", *, after: timedelta = RETRY_AFTER) -> None:
        super().__init__(why)
        self.after = after


class Paused(Later):
    """The work waits until somebody resumes it."""


class Ending(Later):
    """The worker stops; another continues at once."""

    def __init__(self) -> None:
        super().__init__(after=timedelta(0))


@dataclass(frozen=True)
class Lease:
    """The right to do a piece of work; every write through it checks the fence."""

    work_id: int
    fence: int
    owner: str
    lasts: timedelta = LEASE

    def pulse(self, done: int, total: int) -> None:
        """Renew and report progress.

        Raises Stopped when cancelled or no longer ours, Paused when somebody paused it.
        """
        if not self.renew(done, total):
            raise Stopped("Another worker took over this task.")
        requests = self._row().values_list("cancel_requested", "pause_requested", "broker")
        is_cancelled, is_paused, broker = requests.first() or (False, False, None)
        if is_cancelled:
            raise Stopped("Cancelled.")
        if is_paused:
            raise Paused
        _refuse_change(broker)

    def renew(self, done: int, total: int, **values: Any) -> bool:
        """Renew, report progress and set these columns; False when it was no longer ours."""
        until = Now() + self.lasts
        return bool(self._row().update(leased_until_at=until, done=done, total=total, **values))

    def report(self, error: str) -> bool:
        """Show what keeps it from going on, "" for nothing; False when it was no longer ours."""
        return bool(self._row().update(error=error))

    def end(self, state: WorkState, error: str = "") -> bool:
        """Close the work; False when it was no longer ours."""
        return bool(
            self._row().update(state=state, error=error, ended_at=Now(), leased_until_at=None)
        )

    def give_back(self, error: str, *, after: timedelta = timedelta(0), **values: Any) -> bool:
        """Let it be tried again later, with the reason shown meanwhile."""
        return bool(
            self._row().update(
                state=WorkState.WAITING,
                error=error,
                leased_until_at=None,
                not_before_at=Now() + after,
                **values,
            )
        )

    def _row(self) -> Any:
        return Work.objects.filter(
            pk=self.work_id, fence=self.fence, owner=self.owner, state=WorkState.RUNNING
        )


def attempt(
    do: Callable[..., None],
    claimed: Work,
    *,
    stop: Event,
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Do a claimed work, which is done when `do` returns and has neither ended nor returned it.

    Of what `do` raises this is the one meaning: Stopped ends it, Failed too, Later and BrokerError
    let it be tried again. A BrokerError after `do` returned the work is raised.
    """
    lease = lease_of(claimed)
    ids = {"work_id": claimed.pk, "actor_id": claimed.created_by_id}
    goes_on = finishing() if claimed.kind in FINISHED_ONCE_BEGUN else nullcontext()
    try:
        with bound_contextvars(**ids, broker_id=claimed.broker_id), goes_on:
            if not claimed.cancel_requested:
                _refuse_change(claimed.broker_id)
            do(claimed, stop=stop, alive=alive)
    except Stopped as stopped:
        lease.end(WorkState.CANCELLED, str(stopped))
    except Failed as failure:
        lease.end(WorkState.FAILED, str(failure))
    except Paused as paused:
        lease.give_back(str(paused), pause_requested=True)
    except Later as later:
        lease.give_back(str(later), after=later.after)
    except BrokerError as error:
        if not lease.give_back(str(error), after=RETRY_AFTER):
            raise
    else:
        lease.end(WorkState.DONE)


def refuse_beginning(claimed: Work) -> None:
    """Called where work of FINISHED_ONCE_BEGUN has changed nothing yet. Raises ReadOnly.

    What is cancelled goes on to its first heartbeat, which ends it.
    """
    if not claimed.cancel_requested:
        refuse_read_only(claimed.broker_id, is_beginning=True)


def _refuse_change(broker_id: int | None) -> None:
    """Raises ReadOnly. Work of no broker, as a nightly run, changes none."""
    if broker_id is not None:
        refuse_read_only(broker_id)


def name_process() -> str:
    """This process as the owner of leases."""
    return f"{socket.gethostname()}:{os.getpid()}"


def create(kind: str, subject: int, *, broker: Broker | None, user: Any, total: int = 0) -> Work:
    """A new row for somebody to claim. Raises ReadOnly."""
    _refuse_change(broker.pk if broker else None)
    return Work.objects.create(
        kind=kind, subject=subject, broker=broker, created_by=user, total=total
    )


def free_kinds() -> set[str]:
    """The kinds of the work that somebody can claim now."""
    free = Work.objects.filter(_free()).order_by()
    return set(free.values_list("kind", flat=True).distinct())


def claim(kinds: Collection[str], owner: str) -> Work | None:
    """Take the oldest work that waits, or whose holder let its lease run out."""
    free = Work.objects.filter(_free(), kind__in=kinds)
    return next(filter(None, (claim_this(work, owner) for work in free.order_by("pk")[:10])), None)


@contextmanager
def alone(
    kind: str, subject: int, *, broker: Broker | None = None, lasts: timedelta = LEASE
) -> Iterator[Lease | None]:
    """The lease of the one row of an EXCLUSIVE kind for a subject; None while another has it."""
    row, _ = Work.objects.get_or_create(kind=kind, subject=subject, defaults={"broker": broker})
    claimed = claim_this(row, name_process(), lasts)
    if claimed is None:
        yield None
        return
    lease = Lease(claimed.pk, claimed.fence, claimed.owner, lasts)
    try:
        yield lease
    finally:
        lease.give_back("")


class Leases:
    """The leases that one process has of one EXCLUSIVE kind, claimed and renewed together.

    Nobody else has the name `owner` while the process lives: what a process of this name left is
    ours at once.

    What is to be left stays ours while a thread of ours does it (`busy`), until `release`.
    """

    def __init__(self, kind: str, owner: str) -> None:
        self._kind = kind
        self._rows = Work.objects.filter(kind=kind)
        self._own = self._rows.filter(owner=owner, state=WorkState.RUNNING)
        self._owner = owner
        self._wanted = frozenset[int]()
        self._held = frozenset[int]()
        self._leaving = frozenset[int]()
        self._renewed_at = monotonic()
        self._free_since: dict[int, float] = {}
        self._read_at = float("-inf")

    def hold(
        self,
        wanted: Collection[int],
        *,
        busy: Collection[int] = (),
        count_sharers: Callable[[], int] = lambda: 1,
    ) -> frozenset[int]:
        """Renew ours, and claim of these subjects what nobody has; those that are to be done now.

        Between several sharers each takes its share, and more only of what nobody else takes. While
        nothing changes, the database is asked every few seconds.
        """
        asked = frozenset(wanted)
        if asked == self._wanted and monotonic() - self._read_at < RENEWED_AFTER_SECONDS:
            return self._held
        if asked != self._wanted:
            missing = asked.difference(self._rows.values_list("subject", flat=True))
            rows = [Work(kind=self._kind, subject=one) for one in missing]
            Work.objects.bulk_create(rows, ignore_conflicts=True)
        renewed_at = monotonic()
        # What a process of our name left is renewed with ours, and then ours.
        self._own.update(leased_until_at=Now() + LEASE)
        self._renewed_at = renewed_at
        own = frozenset(self._own.values_list("subject", flat=True))
        leaving = (own - asked) | (self._leaving & own)
        held = sorted(own - leaving)
        share = -(-len(asked) // count_sharers())
        most = share + share // 4 + 2
        if len(held) > most:
            leaving |= set(held).difference(_spread(held, share))
        self._leaving = leaving
        self.release(leaving.difference(busy))
        self._claim(asked, share - len(held))
        self._held = frozenset(self._own.values_list("subject", flat=True)) - self._leaving
        self._wanted, self._read_at = asked, monotonic()
        return self._held

    def _claim(self, asked: frozenset[int], room: int) -> None:
        rows = self._rows.filter(_free(), subject__in=asked).order_by("subject")
        free = list(rows.values_list("subject", flat=True))
        since = self._free_since
        self._free_since = {one: since.get(one, monotonic()) for one in free}
        long_ago = monotonic() - LEFT_AFTER_SECONDS
        left = {one for one in free if self._free_since[one] < long_ago}
        chosen = left.union(_spread(free, room))
        rows.filter(subject__in=chosen).update(
            state=WorkState.RUNNING,
            owner=self._owner,
            fence=F("fence") + 1,
            leased_until_at=Now() + LEASE,
        )

    def release(self, subjects: Collection[int]) -> None:
        """Let others claim these at once."""
        if subjects:
            own = self._own.filter(subject__in=subjects)
            own.update(state=WorkState.WAITING, leased_until_at=None)
            self._leaving = self._leaving.difference(subjects)
            self._read_at = float("-inf")

    @property
    def are_over(self) -> bool:
        """Whether they could not be renewed in time: another may have what was ours."""
        return monotonic() - self._renewed_at > LEASE.total_seconds()


def leased(kind: str) -> set[int]:
    """The subjects of an EXCLUSIVE kind that some process has now."""
    rows = Work.objects.filter(kind=kind, state=WorkState.RUNNING)
    return set(rows.filter(leased_until_at__gt=Now()).values_list("subject", flat=True))


def _spread(subjects: Sequence[int], number: int) -> list[int]:
    """At most so many of these, spread evenly: those beside each other are often of one kind."""
    number = max(0, min(number, len(subjects)))
    return [subjects[place * len(subjects) // number] for place in range(number)]


def claim_this(work: Work, owner: str, lasts: timedelta = LEASE) -> Work | None:
    """Take this one; None when it has ended, is another's, or waits for its time."""
    taken = Work.objects.filter(_free(), pk=work.pk, fence=work.fence).update(
        state=WorkState.RUNNING,
        owner=owner,
        fence=F("fence") + 1,
        attempts=F("attempts") + 1,
        leased_until_at=Now() + lasts,
    )
    if not taken:
        return None
    work.refresh_from_db()
    return work


def _free() -> Q:
    is_due = Q(pause_requested=False) & (Q(not_before_at=None) | Q(not_before_at__lte=Now()))
    return Q(state=WorkState.WAITING) & (is_due | Q(cancel_requested=True)) | _is_left()


def _is_left() -> Q:
    """The condition that the holder died, or let its lease run out."""
    return Q(state=WorkState.RUNNING, leased_until_at__lte=Now())


def free(work: Work) -> None:
    """Let it wait where its holder died: then `cancel` ends it at once."""
    left = Work.objects.filter(_is_left(), pk=work.pk)
    if left.update(state=WorkState.WAITING, leased_until_at=None):
        work.refresh_from_db()


def pause(work: Work) -> None:
    """Let nobody go on with it; who has its lease gives it back at the next heartbeat."""
    Work.objects.filter(pk=work.pk).update(pause_requested=True)


def resume(work: Work) -> None:
    """Let it be tried at once, whatever paused or hindered it before."""
    own = Work.objects.filter(pk=work.pk)
    own.update(pause_requested=False)
    own.filter(state=WorkState.WAITING).update(error="", not_before_at=None)


def lease_of(work: Work) -> Lease:
    return Lease(work.pk, work.fence, work.owner)


def cancel(work: Work) -> None:
    """Request the end: immediate when nobody holds it, else at its next heartbeat."""
    free = Work.objects.filter(pk=work.pk, state=WorkState.WAITING)
    if not free.update(state=WorkState.CANCELLED, ended_at=Now()):
        Work.objects.filter(pk=work.pk, state=WorkState.RUNNING).update(cancel_requested=True)
