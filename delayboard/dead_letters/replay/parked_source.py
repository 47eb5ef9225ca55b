"""The messages of a batch as the source of a move: each begun durably before it is sent.

Answers of RabbitMQ are kept until they are due, then written: items, messages, counts and facts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import NamedTuple

from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.parked.store import change_each
from delayboard.dead_letters.replay.batch_state import BatchLease
from delayboard.dead_letters.replay.claims import find_earlier_states
from delayboard.dead_letters.replay.content import Content, prepare_replay, read_contents
from delayboard.dead_letters.replay.options import OptionError
from delayboard.dead_letters.replay.targets import find_delay_route
from delayboard.dead_letters.replay.verdicts import explain_returned
from delayboard.models import (
    Interception,
    ItemState,
    ParkedState,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
    TargetMode,
)
from delayboard.models.replay import OPEN, Order, ReplayEdit, ReplayOutcome, replay_id
from topology import work
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.broker.errors import BrokerError, Conflict, NotFound, Refused, Unsupported
from topology.broker.management.client import Management
from topology.broker.properties.field_values import FieldError
from topology.database.select_keys import match_keys
from topology.definitions import Definitions
from topology.message import Publish, Route
from topology.operations.answers import TapCheck
from topology.operations.ownership import owning
from topology.patterns.pattern import ParamsError
from topology.structure.taps import tapped_exchanges
from topology.transfer.move import RateLimiter, Step

# Most bytes of bodies in flight; a larger message is sent alone.
MOST_BYTES = 32_000_000
# Connections that may fail during the publish of one message, before the replay abandons it.
TRIES = 4
# Failed connections -> messages that are sent together: one that closes the connection each time is
# sent alone in the end, and delays few others.
TOGETHER = {2: 50, 3: 1}
# Number of answers, and seconds since the first, after which they are written.
FLUSH_NUMBER = 1000
FLUSH_SECONDS = 0.2
# Seconds until a broker that did not answer is tried again.
CHECK_AGAIN_SECONDS = 1.0
MOST_KNOWN = 20_000

CONNECTION_FAILED = (
    f"The connection failed {TRIES} times during the publish. The message "
    "remains parked, but it may have arrived."
)
DELETED = "The parked message was deleted meanwhile."
_STATES: Mapping[str, ItemState] = {
    "confirmed": ItemState.DONE,
    "returned": ItemState.RETURNED,
    "refused": ItemState.FAILED,
    "failed": ItemState.FAILED,
    "nacked": ItemState.UNKNOWN,
}


@dataclass
class ParkedMessageSource:
    """Open items in their order; what was left begun by an earlier run goes again, marked.

    `write` runs what it is given in a transaction, and again until the database has taken it.
    `remaining` is how many may still go, None is all. At most `window` are begun and not written
    down: so many may a crash duplicate. `is_through`: every open item was taken. `trouble` is why
    what was confirmed cannot be checked just now: nothing more is taken then.
    """

    lease: BatchLease
    routes: PublishRoutes
    limiter: RateLimiter
    write: Callable[[Callable[[], None]], None]
    window: int
    remaining: int | None = None
    is_through: bool = field(default=False, init=False)
    trouble: BrokerError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._batch = self.lease.batch
        self._has_edits = ReplayEdit.objects.filter(item__batch=self._batch.pk).exists()
        self._together = self.window
        self._cursor: int | None = None
        # The size of each body, by position.
        self._in_flight: dict[int, int] = {}
        self._endings: list[Ending] = []
        self._first_at = self._check_again_at = 0.0

    @property
    def is_exhausted(self) -> bool:
        return self.is_through or self.remaining == 0

    def take(self, room: int) -> Sequence[Step[Taken]]:
        """The next ones, marked as begun. Raises Stopped."""
        # Half a window is begun in a commit, while the other half is on its way.
        half = max(1, self.window // 2)
        most = min(room, half, self.limiter.allows(time.monotonic()))
        self.flush(due_only=True, at_once=most > 0)
        if self.remaining is not None:
            most = min(most, self.remaining)
        # Only when half of them have arrived, as with their number: each time is a commit.
        is_full = self._in_flight and sum(self._in_flight.values()) * 2 >= MOST_BYTES
        if most <= 0 or is_full or self.trouble:
            return []
        rows = self._read_next(most)
        steps, ended = self._make_steps(rows)
        return steps if rows and self._begin(rows, steps, ended) else []

    def settle(self, answers: Sequence[tuple[Taken, Answer]]) -> None:
        """Keep what was answered until it is written down. What is unknown stays begun.

        A lost lease is found by `take`: here it would keep the next answers from being heard.
        """
        if not self._endings:
            self._first_at = time.monotonic()
        for taken, answer in answers:
            self._in_flight.pop(taken.position, None)
            if answer.kind != "unknown":
                state = _STATES[answer.kind]
                self._endings.append(Ending(taken, state, answer.error, answer.again))
        with suppress(work.Stopped):
            self.flush(due_only=True)

    def note_break(self) -> None:
        """The connection broke, and what has no answer was on its way. Raises Stopped."""
        with transaction.atomic():
            self.lease.renew()
            lock_items(self._batch, self._in_flight)
            in_flight = filter_items(self._batch, self._in_flight)
            in_flight.filter(state=ItemState.PUBLISHING).update(attempts=F("attempts") + 1)

    def flush(self, *, due_only: bool = False, at_once: bool = False) -> None:
        """Write down what was answered; with `due_only` when it is due, which `at_once` makes it.

        Raises Stopped; confirmed publishes are written even then. Answers that cannot be checked
        now are kept and checked later; without `due_only` they raise BrokerError.
        """
        is_due = (
            at_once
            or not self._in_flight
            or len(self._endings) >= FLUSH_NUMBER
            or time.monotonic() - self._first_at > FLUSH_SECONDS
        )
        if not self._endings or (due_only and not is_due):
            return
        if not (due_only and self.trouble and time.monotonic() < self._check_again_at):
            self._check()
        if checked := [one for one in self._endings if not one.is_to_check]:
            self._commit(checked)
        self._endings = [one for one in self._endings if one.is_to_check]
        if self.trouble is not None and not due_only:
            raise self.trouble

    def _check(self) -> None:
        """At a tapped exchange, check after the confirm that another queue than the tap exists."""
        check = TapCheck(self.routes.management, self.routes.definitions)
        try:
            for place, one in enumerate(self._endings):
                if one.state == ItemState.DONE and (tapped := one.taken.tapped) is not None:
                    why = check.explain_loss(tapped)
                    taken = one.taken._replace(tapped=None)
                    state = ItemState.RETURNED if why else one.state
                    self._endings[place] = one._replace(
                        taken=taken, state=state, error=why or one.error
                    )
            self.trouble = None
        except BrokerError as error:
            self.trouble = error
            self._check_again_at = time.monotonic() + CHECK_AGAIN_SECONDS

    def _commit(self, endings: Sequence[Ending]) -> None:
        def write_held() -> None:
            self.lease.renew()
            write_endings(self._batch, endings, timezone.now())

        def write_late() -> None:
            """Another worker has the batch by now: what was not confirmed is its to send again."""
            self.lease.lock_work()
            confirmed = [one for one in endings if one.state == ItemState.DONE]
            write_endings(self._batch, confirmed, timezone.now())

        try:
            self.write(write_held)
        except work.Stopped:
            self.write(write_late)
            raise
        _add_counts(self._batch, endings)

    def _read_next(self, most: int) -> list[OpenItem]:
        """The next items, as many as their bodies allow and as may be sent together."""
        newest = self._batch.order == Order.NEWEST
        rows = ReplayItem.objects.filter(batch=self._batch.pk, state__in=OPEN)
        if self._cursor is not None:
            beyond = {"position__lt" if newest else "position__gt": self._cursor}
            rows = rows.filter(**beyond)
        columns = (
            *("pk", "position", "parked_message_id", "route_id", "state", "attempts", "size"),
            *("may_be_duplicated", "shared_replay_id"),
        )
        ordered = rows.order_by("-position" if newest else "position")
        found = [OpenItem(*values) for values in ordered.values_list(*columns)[:most]]
        self.is_through = not found
        room, kept, in_flight = MOST_BYTES - sum(self._in_flight.values()), 0, len(self._in_flight)
        together = self._together if in_flight else self.window
        for row in found:
            most = min(together, TOGETHER.get(row.connection_failures, self.window))
            if (kept or in_flight) and (kept + in_flight >= most or row.size > room):
                break
            room -= row.size
            together = most
            kept += 1
        self._together = together
        return found[:kept]

    def _make_steps(self, rows: list[OpenItem]) -> tuple[list[Step[Taken]], list[Ending]]:
        """What can be published of them, and how the others ended."""
        contents = read_contents(
            [(row.pk, row.parked_message) for row in rows], self._batch, edits=self._has_edits
        )
        steps, ended = [], []
        for row in rows:
            content = contents.get(row.pk)
            if row.connection_failures >= TRIES:
                ended.append(row.end(ItemState.UNKNOWN, CONNECTION_FAILED, again=True))
            elif content is None or row.route is None:
                ended.append(row.end(ItemState.FAILED, DELETED))
            elif isinstance(made := self._make_step(row, row.route, content), str):
                ended.append(row.end(ItemState.FAILED, made))
            else:
                steps.append(made)
        return steps, ended

    def _make_step(self, row: OpenItem, route: int, content: Content) -> Step[Taken] | str:
        """The message without what dying added, under its replay id; or why it cannot be sent."""
        publish_route = self.routes.find(route)
        if publish_route.refusal:
            return publish_route.refusal
        name = row.shared_replay_id or replay_id(self._batch.uid, row.position)
        try:
            publish = prepare_replay(publish_route.route, content.properties, content.body, name)
        except FieldError as error:
            return f"Its properties cannot be edited: {error}."
        if why := explain_returned(self.routes.definitions, publish):
            return why
        taken = Taken(
            row.position,
            row.parked_message,
            publish_route.is_delayed,
            content.queue,
            content.make_fact(publish, name),
            publish if publish_route.is_tapped else None,
        )
        return Step(taken, publish)

    def _begin(self, rows: list[OpenItem], steps: list[Step[Taken]], ended: list[Ending]) -> bool:
        """Mark them as begun in one commit; False when people want something else first.

        False too when one that is to be sent has its end since it was read: then they are read
        again.
        """
        begun = {step.token.position for step in steps}
        again = [row for row in rows if row.state == ItemState.PUBLISHING and row.position in begun]
        marks = sum(not row.is_marked for row in again)
        with transaction.atomic():
            if self.lease.renew():
                return False
            written = write_endings(self._batch, ended, timezone.now(), begun=begun)
            items = filter_items(self._batch, begun).filter(state__in=OPEN)
            changes = {"state": ItemState.PUBLISHING, "attempts": Greatest(F("attempts"), 1)}
            if items.update(**changes) < len(begun):
                transaction.set_rollback(True)
                return False
            if again:
                same = filter_items(self._batch, [row.position for row in again])
                same.update(may_be_duplicated=True)
            if marks:
                ReplayBatch.objects.filter(pk=self._batch.pk).update(doubled=F("doubled") + marks)
        _add_counts(self._batch, written)
        self._cursor = rows[-1].position
        self.limiter.take(len(steps))
        self._in_flight.update((row.position, row.size) for row in rows if row.position in begun)
        if self.remaining is not None:
            self.remaining -= len(steps)
        return True


class OpenItem(NamedTuple):
    """The columns of an open item that are needed."""

    pk: int
    position: int
    parked_message: int | None
    route: int | None
    state: str
    attempts: int
    size: int
    is_marked: bool
    shared_replay_id: str

    @property
    def connection_failures(self) -> int:
        """How many connections failed during its publish. A killed worker is not counted."""
        return max(0, self.attempts - 1)

    def end(self, state: ItemState, error: str, *, again: bool = False) -> Ending:
        """It ends so without a publish by this worker."""
        return Ending(Taken(self.position, self.parked_message), state, error, again)


class Taken(NamedTuple):
    """An item that was taken to be published; `fact` is None for what cannot be.

    `tapped` is what was published where a tap of ours is bound.
    """

    position: int
    parked_message: int | None
    is_delayed: bool = False
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


@dataclass
class PublishRoute:
    """Where the items of a route are published.

    `refusal` says why publishing is impossible, "" when it is possible. `is_tapped`: only a tap of
    ours may receive the messages, so a confirm does not prove delivery. `declared_until` is when
    what it needs has to be declared, in seconds of the monotonic clock.
    """

    route: Route
    is_delayed: bool
    refusal: str
    is_tapped: bool
    declared_until: float


@dataclass
class PublishRoutes:
    """`definitions` are those of the vhost, looked at when the pass began."""

    batch: ReplayBatch
    definitions: Definitions
    management: Management
    pipeline: Pipeline[object]
    _known: dict[int, PublishRoute] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tapped = tapped_exchanges(self.definitions)

    def find(self, route: int) -> PublishRoute:
        """The publish route of a route. Raises BrokerError when the connection breaks."""
        publish_route = self._known.get(route)
        if publish_route is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            publish_route = self._known[route] = self._make_route(ReplayRoute.objects.get(pk=route))
        if not publish_route.refusal and publish_route.declared_until <= time.monotonic():
            self._declare(publish_route)
        return publish_route

    def _make_route(self, row: ReplayRoute) -> PublishRoute:
        route, refusal = Route(row.exchange, row.routing_key), ""
        if row.ending == "refused":
            refusal = row.verdict
        elif self.batch.mode == TargetMode.DELAY:
            try:
                route = find_delay_route(self.batch, row.routing_key)
            except (OptionError, ParamsError) as error:
                refusal = str(error)
        is_tapped = route.exchange in self._tapped
        # One that declares nothing needs no declaration.
        declared_until = 0.0 if len(route.declares) else inf
        return PublishRoute(route, row.after_ms > 0, refusal, is_tapped, declared_until)

    def _declare(self, publish_route: PublishRoute) -> None:
        """What it needs is there, and ours. A broker that refuses it refuses its messages."""
        assert self.batch.topology is not None
        route = publish_route.route
        declares = Interception.without_replaced(route.declares, self.batch.topology.broker)
        try:
            with owning(self.batch.topology, declares, self.definitions) as declared:
                self.pipeline.declare(declares)
                declared()
        except (Conflict, NotFound, Refused, Unsupported) as error:
            publish_route.refusal = str(error)
        lasts = inf if route.lease is None else route.lease.total_seconds() / 2
        publish_route.declared_until = time.monotonic() + lasts


def write_endings(
    batch: ReplayBatch, endings: Sequence[Ending], at: datetime, *, begun: Collection[int] = ()
) -> Sequence[Ending]:
    """All of it in the caller's transaction, which has the batch's work locked; what was written.

    What has its end already keeps it: a commit whose answer was lost was made all the same, or
    another worker was first. The items at the positions `begun` are locked too, for the caller.
    """
    endings = _filter_open(batch, endings)
    # The new state: replayed, in a delay, or the state before this batch claimed the
    # message.
    wanted = {
        one.taken.parked_message: ParkedState.PARKED
        if one.state != ItemState.DONE
        else ParkedState.DELAYED
        if one.taken.is_delayed
        else ParkedState.REPLAYED
        for one in endings
        if one.taken.parked_message is not None
    }
    parked = [key for key, state in wanted.items() if state == ParkedState.PARKED]
    change_each(
        {**wanted, **find_earlier_states(batch, parked)},
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
    """Lock the items in the order of their keys, as whoever writes outcomes does; messages and
    groups come before.
    """
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


def _add_counts(batch: ReplayBatch, endings: Sequence[Ending]) -> None:
    """The row in memory as `write` has left the stored one."""
    for state, number in Counter([one.state for one in endings]).items():
        setattr(batch, state, getattr(batch, state) + number)
