"""The messages of a batch as the source of a move: each begun durably before it is sent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
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
from topology.provisioning.taps import tapped_exchanges
from topology.transfer.move import RateLimiter, Step

# Bytes of bodies in flight. A larger message is sent alone.
MOST_BYTES = 32_000_000
# Connections that may fail during the publish of one message, before the replay abandons it.
TRIES = 4
# The number of messages sent together, by their failed connections: a message that closes the
# connection each time is sent alone in the end, and delays few others.
TOGETHER = {2: 50, 3: 1}

CONNECTION_FAILED = (
    f"The connection failed {TRIES} times during the publish. The message "
    "remains parked, but it may have arrived."
)
DELETED = "The parked message was deleted meanwhile."


class Row(NamedTuple):
    """An open item."""

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

    @property
    def was_begun(self) -> bool:
        return self.state == ItemState.PUBLISHING


@dataclass
class ParkedMessageSource:
    """Open items in their order; what was left begun by an earlier run goes again, marked.

    `write` runs what it is given in a transaction, and again until the database has taken it.
    `remaining` is how many may still go, None is all. At most `window` are begun and not written
    down: so many may a crash duplicate.
    """

    lease: BatchLease
    routes: PublishRoutes
    limiter: RateLimiter
    write: Callable[[Callable[[], None]], None]
    window: int
    remaining: int | None = None
    _cursor: int | None = None
    _in_flight: dict[int, int] = field(default_factory=dict)
    _is_through: bool = False

    def __post_init__(self) -> None:
        self._answered = Answers(self.lease, self.routes, self.write)
        self._together = self.window
        self._has_edits = ReplayEdit.objects.filter(item__batch=self._batch.pk).exists()

    @property
    def _batch(self) -> ReplayBatch:
        return self.lease.batch

    @property
    def is_exhausted(self) -> bool:
        return self._is_through or self.remaining == 0

    @property
    def is_through(self) -> bool:
        """Every open item was taken."""
        return self._is_through

    @property
    def trouble(self) -> BrokerError | None:
        """Why what was confirmed cannot be checked just now: nothing more is taken then."""
        return self._answered.trouble

    def take(self, room: int) -> Sequence[Step[Taken]]:
        """The next ones, marked as begun. Raises Stopped."""
        # Half a window is begun in a commit, while the other half is on its way.
        half = max(1, self.window // 2)
        most = min(room, half, self.limiter.allows(time.monotonic()))
        self._answered.flush(due_only=True, at_once=most > 0 or not self._in_flight)
        if self.remaining is not None:
            most = min(most, self.remaining)
        # Only when half of them have arrived, as with their number: each time is a commit.
        is_full = self._in_flight and sum(self._in_flight.values()) * 2 >= MOST_BYTES
        if most <= 0 or is_full or self.trouble:
            return []
        rows = self._read_next(most)
        if not rows:
            return []
        steps, ended = self._make_steps([row for row in rows if row.connection_failures < TRIES])
        ended += [
            Ending(_make_taken(row), ItemState.UNKNOWN, CONNECTION_FAILED, again=True)
            for row in rows
            if row.connection_failures >= TRIES
        ]
        return steps if self._begin(rows, steps, ended) else []

    def settle(self, answers: Sequence[tuple[Taken, Answer]]) -> None:
        """Keep what was answered until it is written down. What is unknown stays begun.

        A lost lease is found by `take`: here it would keep the next answers from being heard.
        """
        for taken, _ in answers:
            self._in_flight.pop(taken.position, None)
        self._answered.add(answers)
        with suppress(work.Stopped):
            self.flush(due_only=True)

    def note_break(self) -> None:
        """The connection broke, and what has no answer was on its way. Raises Stopped."""
        with transaction.atomic():
            self.lease.renew()
            lock_items(self._batch, self._in_flight)
            in_flight = filter_items(self._batch, self._in_flight)
            in_flight.filter(state=ItemState.PUBLISHING).update(attempts=F("attempts") + 1)

    def flush(self, *, due_only: bool = False) -> None:
        """Write down what was answered. Raises Stopped, and at the end BrokerError."""
        self._answered.flush(due_only=due_only, at_once=not self._in_flight)

    def _read_next(self, most: int) -> list[Row]:
        """As many as their bodies allow, and as may go together."""
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
        found = [Row(*values) for values in ordered.values_list(*columns)[:most]]
        self._is_through = not found
        return self._cut(found)

    def _cut(self, rows: list[Row]) -> list[Row]:
        room, kept, in_flight = MOST_BYTES - sum(self._in_flight.values()), 0, len(self._in_flight)
        together = self._together if in_flight else self.window
        for row in rows:
            most = min(together, TOGETHER.get(row.connection_failures, self.window))
            if (kept or in_flight) and (kept + in_flight >= most or row.size > room):
                break
            room -= row.size
            together = most
            kept += 1
        self._together = together
        return rows[:kept]

    def _make_steps(self, rows: list[Row]) -> tuple[list[Step[Taken]], list[Ending]]:
        """What can be published of them, and how the others ended."""
        found = read_contents(
            [(row.pk, row.parked_message) for row in rows], self._batch, edits=self._has_edits
        )
        steps, ended = [], []
        for row in rows:
            content = found.get(row.pk)
            if content is None or row.route is None:
                ended.append(Ending(_make_taken(row), ItemState.FAILED, DELETED))
                continue
            try:
                steps.append(self._make_step(row, row.route, content))
            except Unsendable as error:
                ended.append(Ending(_make_taken(row), ItemState.FAILED, str(error)))
        return steps, ended

    def _make_step(self, row: Row, route: int, content: Content) -> Step[Taken]:
        publish_route = self.routes.find(route)
        name = row.shared_replay_id or replay_id(self._batch.uid, row.position)
        publish = self.routes.publish(publish_route, content, name)
        return Step(
            Taken(
                row.position,
                row.parked_message,
                publish_route.is_delayed,
                content.queue,
                content.make_fact(publish, name),
                publish if publish_route.is_tapped else None,
            ),
            publish,
        )

    def _begin(self, rows: list[Row], steps: list[Step[Taken]], ended: list[Ending]) -> bool:
        """Mark them as begun in one commit; False when people want something else first.

        False too when one that is to be sent has its end since it was read: then they are read
        again.
        """
        begun = {step.token.position for step in steps}
        again = [row for row in rows if row.was_begun and row.position in begun]
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
        add_counts(self._batch, written)
        self._cursor = rows[-1].position
        self.limiter.take(len(steps))
        self._in_flight.update((row.position, row.size) for row in rows if row.position in begun)
        if self.remaining is not None:
            self.remaining -= len(steps)
        return True


def _make_taken(row: Row) -> Taken:
    return Taken(row.position, row.parked_message, is_delayed=False)


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


MOST_KNOWN = 20_000


@dataclass
class PublishRoute:
    """Where the items of a route are published.

    `refusal` says why publishing is impossible, "" when it is possible. `is_tapped`: only a tap of
    ours may receive the messages, so a confirm does not prove delivery.
    """

    route: Route
    is_delayed: bool
    refusal: str = ""
    is_tapped: bool = False
    declared_at: float | None = None

    @property
    def is_declared(self) -> bool:
        lease = self.route.lease
        return self.declared_at is not None and (
            lease is None or time.monotonic() - self.declared_at < lease.total_seconds() / 2
        )


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
        if not publish_route.refusal and not publish_route.is_declared:
            self._declare(publish_route)
        return publish_route

    def publish(self, publish_route: PublishRoute, content: Content, name: str) -> Publish:
        """The message without what dying added, under its replay id. Raises Unsendable."""
        if publish_route.refusal:
            raise Unsendable(publish_route.refusal)
        route = publish_route.route
        try:
            publish = prepare_replay(route, content.properties, content.body, name)
        except FieldError as error:
            raise Unsendable(f"Its properties cannot be edited: {error}.") from error
        if why := explain_returned(self.definitions, publish):
            raise Unsendable(why)
        return publish

    def check(self) -> TapCheck:
        """A check for everything that was confirmed until now."""
        return TapCheck(self.management, self.definitions)

    def _make_route(self, row: ReplayRoute) -> PublishRoute:
        route, refusal = Route(row.exchange, row.routing_key), ""
        if row.ending == "refused":
            refusal = row.verdict
        elif self.batch.mode == TargetMode.DELAY:
            try:
                route = find_delay_route(self.batch, row.routing_key)
            except (OptionError, ParamsError) as error:
                refusal = str(error)
        # One that declares nothing needs no declaration.
        declared_at = None if len(route.declares) else 0.0
        is_tapped = route.exchange in self._tapped
        return PublishRoute(route, row.after_ms > 0, refusal, is_tapped, declared_at)

    def _declare(self, publish_route: PublishRoute) -> None:
        """What it needs is there, and ours. A broker that refuses it refuses its messages."""
        assert self.batch.topology is not None
        declares = Interception.without_replaced(
            publish_route.route.declares, self.batch.topology.broker
        )
        try:
            with owning(self.batch.topology, declares, self.definitions) as declared:
                self.pipeline.declare(declares)
                declared()
        except (Conflict, NotFound, Refused, Unsupported) as error:
            publish_route.refusal = str(error)
        publish_route.declared_at = time.monotonic()


class Unsendable(Exception):
    """The message was not sent and cannot be; the sentence says why."""
