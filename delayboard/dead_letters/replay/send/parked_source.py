"""The messages of a batch as the source of a move: each begun durably before it is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from delayboard.dead_letters.replay.batch.lease import BatchLease
from delayboard.dead_letters.replay.content import Content, read_contents
from delayboard.dead_letters.replay.send import settle_items
from delayboard.dead_letters.replay.send.publish_routes import PublishRoutes, Unsendable
from delayboard.dead_letters.replay.send.settle_items import Answers, Ending, Taken
from delayboard.models import ItemState, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN, Order, ReplayEdit, replay_id
from topology import work
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import BrokerError
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
            settle_items.lock_items(self._batch, self._in_flight)
            in_flight = settle_items.filter_items(self._batch, self._in_flight)
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
            written = settle_items.write_endings(self._batch, ended, timezone.now(), begun=begun)
            items = settle_items.filter_items(self._batch, begun).filter(state__in=OPEN)
            changes = {"state": ItemState.PUBLISHING, "attempts": Greatest(F("attempts"), 1)}
            if items.update(**changes) < len(begun):
                transaction.set_rollback(True)
                return False
            if again:
                same = settle_items.filter_items(self._batch, [row.position for row in again])
                same.update(may_be_duplicated=True)
            if marks:
                ReplayBatch.objects.filter(pk=self._batch.pk).update(doubled=F("doubled") + marks)
        settle_items.add_counts(self._batch, written)
        self._cursor = rows[-1].position
        self.limiter.take(len(steps))
        self._in_flight.update((row.position, row.size) for row in rows if row.position in begun)
        if self.remaining is not None:
            self.remaining -= len(steps)
        return True


def _make_taken(row: Row) -> Taken:
    return Taken(row.position, row.parked_message, is_delayed=False)
