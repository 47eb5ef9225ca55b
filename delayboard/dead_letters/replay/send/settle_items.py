"""Answers of RabbitMQ until they are due, then written: items, messages, counts and facts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.db.models import F, QuerySet
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.parked.states import change_each
from delayboard.dead_letters.replay.batch.claims import find_earlier_states
from delayboard.dead_letters.replay.batch.lease import BatchLease
from delayboard.dead_letters.replay.send.publish_routes import PublishRoutes
from delayboard.models import ItemState, ParkedState, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN, ReplayOutcome
from topology import work
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import BrokerError
from topology.database.select_keys import match_keys
from topology.message import Publish
from topology.operations.answers import TapCheck

# Answers, and seconds since the first, after which they are written.
FLUSH_NUMBER = 1000
FLUSH_SECONDS = 0.2
# Seconds until a broker that did not answer is asked again.
CHECK_AGAIN_SECONDS = 1.0
_STATES: Mapping[str, ItemState] = {
    "confirmed": ItemState.DONE,
    "returned": ItemState.RETURNED,
    "refused": ItemState.FAILED,
    "failed": ItemState.FAILED,
    "nacked": ItemState.UNKNOWN,
}


@dataclass
class Answers:
    """`write` runs what it is given in a transaction, and again until the database has taken it.

    `trouble` is why what was confirmed cannot be checked just now.
    """

    lease: BatchLease
    routes: PublishRoutes
    write: Callable[[Callable[[], None]], None]
    trouble: BrokerError | None = None
    _endings: list[Ending] = field(default_factory=list)
    _first_at: float = 0.0
    _check_again_at: float = 0.0

    def add(self, answers: Sequence[tuple[Taken, Answer]]) -> None:
        """Keep them until they are written down. What is unknown stays begun."""
        if not self._endings:
            self._first_at = time.monotonic()
        for taken, answer in answers:
            if answer.kind != "unknown":
                state = _STATES[answer.kind]
                self._endings.append(Ending(taken, state, answer.error, answer.again))

    def flush(self, *, due_only: bool, at_once: bool) -> None:
        """Write the answers; with `due_only` when they are due, which `at_once` makes them.

        Raises Stopped; confirmed publishes are written even then. Answers that cannot be checked
        now are kept and checked later; without `due_only` they raise BrokerError.
        """
        is_due = (
            at_once
            or len(self._endings) >= FLUSH_NUMBER
            or time.monotonic() - self._first_at > FLUSH_SECONDS
        )
        if not self._endings or (due_only and not is_due):
            return
        if not (due_only and self.trouble and time.monotonic() < self._check_again_at):
            self._check()
        checked = [one for one in self._endings if not one.is_to_check]
        if checked:
            self._commit(checked)
        self._endings = [one for one in self._endings if one.is_to_check]
        if self.trouble is not None and not due_only:
            raise self.trouble

    def _check(self) -> None:
        """At a tapped exchange, check after the confirm that another queue than the tap exists."""
        after = self.routes.check()
        try:
            for place, one in enumerate(self._endings):
                if one.is_to_check:
                    self._endings[place] = one.checked(after)
            self.trouble = None
        except BrokerError as error:
            self.trouble = error
            self._check_again_at = time.monotonic() + CHECK_AGAIN_SECONDS

    def _commit(self, endings: Sequence[Ending]) -> None:
        batch = self.lease.batch

        def write_held() -> None:
            self.lease.renew()
            write_endings(batch, endings, timezone.now())

        def write_late() -> None:
            """Another worker has the batch by now: what was not confirmed is its to send again."""
            self.lease.lock_work()
            confirmed = [one for one in endings if one.state == ItemState.DONE]
            write_endings(batch, confirmed, timezone.now())

        try:
            self.write(write_held)
        except work.Stopped:
            self.write(write_late)
            raise
        add_counts(batch, endings)


class Taken(NamedTuple):
    """An item that was taken to be published; `fact` is None for what cannot be.

    `tapped` is what was published where a tap of ours is bound.
    """

    position: int
    parked_message: int | None
    is_delayed: bool
    queue: str = ""
    fact: facts.Stated | None = None
    tapped: Publish | None = None


class Ending(NamedTuple):
    """How an item ended; `again` when one more copy may be in the broker."""

    taken: Taken
    state: ItemState
    error: str = ""
    again: bool = False

    @property
    def is_to_check(self) -> bool:
        return self.state == ItemState.DONE and self.taken.tapped is not None

    def checked(self, after: TapCheck) -> Ending:
        """The same, or returned if no real queue has it. Raises BrokerError."""
        assert self.taken.tapped is not None
        if why := after.explain_loss(self.taken.tapped):
            return self._replace(state=ItemState.RETURNED, error=why)
        return self._replace(taken=self.taken._replace(tapped=None))


def write_endings(
    batch: ReplayBatch, endings: Sequence[Ending], at: datetime, *, begun: Collection[int] = ()
) -> Sequence[Ending]:
    """All of it in the caller's transaction, which has the batch's work locked; what was written.

    What has its end already keeps it: a commit whose answer was lost was made all the same, or
    another worker was first. The items at the positions `begun` are locked too, for the caller.
    """
    endings = _filter_open(batch, endings)
    change_each(
        _choose_states(batch, endings),
        (ParkedState.REPLAYING,),
        by=batch.started_by_id,
        at=at,
    )
    lock_items(batch, [*(one.taken.position for one in endings), *begun])
    counts = _write_items(batch, endings, at)
    again = filter_items(batch, [one.taken.position for one in endings if one.again])
    doubled = again.filter(may_be_duplicated=False).update(may_be_duplicated=True)
    done = [one.taken for one in endings if one.state == ItemState.DONE]
    facts.state_all(
        broker=batch.broker,
        kind="replayed",
        of=[(one.queue, one.fact) for one in done if one.fact is not None],
        at=at,
    )
    changes = {name: F(name) + n for name, n in (counts | {"doubled": doubled}).items() if n}
    if changes:
        ReplayBatch.objects.filter(pk=batch.pk).update(**changes)
    return endings


def lock_items(batch: ReplayBatch, positions: Collection[int]) -> None:
    """By their keys, as whoever writes outcomes does; messages and groups come before."""
    if positions and connection.features.has_select_for_update:
        rows = filter_items(batch, positions).order_by("pk").select_for_update()
        list(rows.values_list("pk"))


def filter_items(batch: ReplayBatch, positions: Collection[int]) -> QuerySet[ReplayItem]:
    """The items at these positions."""
    rows = ReplayItem.objects.filter(batch=batch.pk)
    return rows.filter(match_keys(positions, "position")) if positions else rows.none()


def _filter_open(batch: ReplayBatch, endings: Sequence[Ending]) -> Sequence[Ending]:
    rows = filter_items(batch, [one.taken.position for one in endings]).filter(state__in=OPEN)
    # Nearly always all of them are, and to count rows costs much less than to fetch them.
    if rows.count() == len(endings):
        return endings
    open_positions = set(rows.order_by().values_list("position", flat=True))
    return [one for one in endings if one.taken.position in open_positions]


def _choose_states(batch: ReplayBatch, endings: Sequence[Ending]) -> dict[int, ParkedState]:
    """The new state: replayed, in a delay, or the state before this batch claimed the message."""
    wanted = {}
    for one in endings:
        if one.taken.parked_message is not None:
            wanted[one.taken.parked_message] = (
                ParkedState.PARKED
                if one.state != ItemState.DONE
                else ParkedState.DELAYED
                if one.taken.is_delayed
                else ParkedState.REPLAYED
            )
    parked = [
        parked_message for parked_message, state in wanted.items() if state == ParkedState.PARKED
    ]
    return {**wanted, **find_earlier_states(batch, parked)}


def _write_items(batch: ReplayBatch, endings: Sequence[Ending], at: datetime) -> Counter[str]:
    """How many ended in each state."""
    positions_of: dict[tuple[ItemState, str, bool], list[int]] = {}
    for one in endings:
        is_delayed = one.state == ItemState.DONE and one.taken.is_delayed
        positions_of.setdefault((one.state, one.error, is_delayed), []).append(one.taken.position)
    counts: Counter[str] = Counter()
    for (state, error, is_delayed), positions in positions_of.items():
        counts[state.value] += len(positions)
        rows = filter_items(batch, positions)
        rows.update(state=state, error=error, ended_at=at)
        if is_delayed:
            # What came back dead before its confirm was written down stays so.
            rows.filter(outcome="").update(outcome=ReplayOutcome.DELAYED, outcome_at=at)
    return counts


def add_counts(batch: ReplayBatch, endings: Sequence[Ending]) -> None:
    """The row in memory as `write` has left the stored one."""
    for state, number in Counter([one.state for one in endings]).items():
        setattr(batch, state, getattr(batch, state) + number)
