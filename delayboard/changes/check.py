"""Which of some messages can be changed, when each change takes effect, and what else it touches.

Nothing is changed here: this is the dry run, and what a request begins with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.models import ScheduledMessage
from delayboard.changes.outgoing import rebuild
from delayboard.changes.point import (
    ONLY_CANCEL,
    Point,
    Unchangeable,
    exit_of,
    find_point,
    is_only_cancelled,
    unreadable,
)
from delayboard.models import (
    ChangeKind,
    ChangeState,
    DelayMigration,
    Interception,
    ScheduledChange,
)
from delayboard.models.scheduled_change import OPEN
from topology import snapshots
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.models import Broker, State, Topology, WorkState
from topology.patterns.pattern import ParamsError
from topology.snapshot import Snapshot

# Time before the first due time at which the interception begins: a worker looks every second.
LEAD = timedelta(seconds=10)
# It continues for a change that is due within this time; with the lead alone it would end at once.
HORIZON = LEAD + timedelta(seconds=20)
# What is due sooner cannot be changed any more.
SHORTEST_NOTICE = timedelta(seconds=4)
LEFT = "The message has left its delay."
CHANGED = "Another change of this message is already requested. Undo that change first."
COPIED = (
    "A copy of the message is already published. Delayboard removes the message when it is due."
)
CHANGED_TO = {
    ChangeKind.CANCEL: "cancelled",
    ChangeKind.RESCHEDULE: "rescheduled",
    ChangeKind.DELIVER_NOW: "delivered",
}


@dataclass(frozen=True)
class ChangeVerdict:
    """What a change of one message would do.

    `problem` says why it is impossible, "" where it is not, and `other` is the requested change
    that is in the way; then `point` is what is intercepted
    from `from_at` on, None where the topology has a forwarder, or where the delay queue `queue` is
    read at once, with its `others`. With `is_copied` a copy is published first.
    """

    row: ScheduledMessage
    problem: str = ""
    point: Point | None = None
    from_at: datetime | None = None
    takes_effect_at: datetime | None = None
    is_copied: bool = False
    queue: str = ""
    others: int = 0
    other: ScheduledChange | None = None


def find_obstacles(rows: Sequence[ScheduledMessage], now: datetime) -> dict[int, str]:
    """Why no change of these messages is possible, by their ids; only what Delayboard knows."""
    checker = _Checker(ChangeKind.CANCEL, now, None, rows)
    found = ((row.pk, checker.obstacle_of(row)) for row in rows)
    return {pk: obstacle for pk, obstacle in found if obstacle}


def check(
    rows: Sequence[ScheduledMessage],
    kind: ChangeKind,
    now: datetime,
    new_due_at: datetime | None = None,
) -> list[ChangeVerdict]:
    """A verdict for each row, in their order. Raises BrokerError where a broker is not seen."""
    checker = _Checker(kind, now, new_due_at, rows)
    return [checker.verdict(row) for row in rows]


def check_again(
    verdicts: Sequence[ChangeVerdict],
    kind: ChangeKind,
    now: datetime,
    new_due_at: datetime | None = None,
) -> list[ChangeVerdict]:
    """The verdicts, with what Delayboard stored since; no broker is asked."""
    pks = [verdict.row.pk for verdict in verdicts]
    rows = ScheduledMessage.objects.select_related("topology").in_bulk(pks)
    checker = _Checker(kind, now, new_due_at, list(rows.values()))

    def problem_of(row: ScheduledMessage) -> str:
        return checker.problem_of(rows[row.pk]) if row.pk in rows else LEFT

    return [
        replace(verdict, problem=verdict.problem or problem_of(verdict.row)) for verdict in verdicts
    ]


def is_read(row: ScheduledMessage) -> bool:
    """Whether its delay queue is read to change it: no exchange is passed at its exit, or RabbitMQ
    would count its attempts from zero.
    """
    try:
        if row.topology is None:
            return False
        pattern = row.topology.pattern
        exchange, _ = exit_of(pattern, row.topology.parsed, row.destination)
        return not exchange or is_only_cancelled(pattern)
    except (Unchangeable, ParamsError):
        return False


def bound_again_when(row: ScheduledMessage) -> str:
    """When a program binds its destination again, past an interception; "" for never."""
    try:
        return row.topology.pattern.binds_again(row.topology.parsed) if row.topology else ""
    except ParamsError:
        return ""


def wait_queue(row: ScheduledMessage) -> str:
    """The delay queue in which it waits, of a message whose delay queue is read."""
    is_retry = row.topology is not None and is_only_cancelled(row.topology.pattern)
    return row.queue if is_retry or row.exchange else row.routing_key


class _Checker:
    """Looks at each broker and each destination once."""

    def __init__(
        self,
        kind: ChangeKind,
        now: datetime,
        new_due_at: datetime | None,
        rows: Sequence[ScheduledMessage],
    ) -> None:
        self._kind = kind
        self._now = now
        self._new_due_at = new_due_at
        self._points: dict[tuple[int, str], Point | str] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._queues: dict[tuple[int, str], Mapping[str, Any]] = {}
        self._obstacles: dict[int, str] = {}
        self._chosen = {row.pk for row in rows}
        changes = ScheduledChange.objects.filter(message__in=self._chosen).order_by("pk")
        self._open: dict[int | None, ScheduledChange] = {}
        self._done: dict[int | None, ScheduledChange] = {}
        for change in changes.filter(state__in=(*OPEN, ChangeState.DONE)):
            by_message = self._done if change.state == ChangeState.DONE else self._open
            by_message[change.message_id] = change
        running = DelayMigration.objects.filter(
            work__state__in=(WorkState.WAITING, WorkState.RUNNING)
        ).exclude(work__pause_requested=True, begun=None)
        self._migrated = set(running.values_list("source_id", flat=True))

    def verdict(self, row: ScheduledMessage) -> ChangeVerdict:
        problem = self.problem_of(row)
        if problem:
            return ChangeVerdict(row, problem, other=self._open.get(row.pk))
        assert row.due_at is not None
        assert row.topology is not None
        if row.topology.forwarders:
            # The forwarder gets each message after each lap.
            at = min(row.due_at, self._now + row.topology.parsed.lap)
            return ChangeVerdict(row, takes_effect_at=at)
        if is_read(row):
            return self._verdict_of_read(row)
        point = self._point(row.topology, row.destination)
        if isinstance(point, str):
            return ChangeVerdict(row, point)
        is_copied = self._is_copied(row.due_at)
        if is_copied and isinstance(why := rebuild(row), str):
            return ChangeVerdict(row, why)
        at = self._now if is_copied else row.due_at
        return ChangeVerdict(row, "", point, row.due_at - LEAD, at, is_copied)

    def _verdict_of_read(self, row: ScheduledMessage) -> ChangeVerdict:
        name = wait_queue(row)
        try:
            queue = self._queue(row.broker, name)
        except NotFound:
            return ChangeVerdict(row, f"The delay queue “{name}” does not exist.")
        is_retry = row.topology is not None and is_only_cancelled(row.topology.pattern)
        if problem := unreadable(queue, "" if is_retry else row.destination):
            return ChangeVerdict(row, problem)
        number = queue.get("messages") or 0
        return ChangeVerdict(row, takes_effect_at=self._now, queue=name, others=max(0, number - 1))

    def obstacle_of(self, row: ScheduledMessage) -> str:
        """Why no change of the message is possible, of whatever kind; "" for none known."""
        topology = row.topology
        if row.left_at is not None or row.due_at is None or row.entered_at is None:
            return self._end_of(row) or LEFT
        if change := self._open.get(row.pk):
            return CHANGED if change.copied_at is None else COPIED
        if topology is None or topology.state != State.APPLIED:
            return "The topology of this message is not applied."
        if topology.pk in self._migrated:
            return "The messages of this topology are being migrated. End the migration first."
        if row.due_at < self._now + SHORTEST_NOTICE:
            seconds = SHORTEST_NOTICE // timedelta(seconds=1)
            late = f"The message is due, or is due within {seconds} s. It is too late for a change."
            return self._end_of(row) or late
        if topology.pk not in self._obstacles:
            self._obstacles[topology.pk] = _find_obstacle(topology)
        return self._obstacles[topology.pk]

    def problem_of(self, row: ScheduledMessage) -> str:
        if obstacle := self.obstacle_of(row):
            return obstacle
        topology = row.topology
        assert topology is not None
        if is_only_cancelled(topology.pattern) and self._kind != ChangeKind.CANCEL:
            return ONLY_CANCEL
        if self._new_due_at is not None and (why := self._delay_problem(topology, row)):
            return why
        alike = ScheduledMessage.objects.filter(
            topology=topology,
            key=row.key,
            content_id=row.content_id,
            left_at=None,
            entered_at__isnull=False,
            due_at__gte=self._now,
        )
        if not self._chosen.issuperset(alike.values_list("pk", flat=True)):
            return (
                "Other waiting messages have the same id and content, so Delayboard cannot "
                "distinguish them. Select all of them."
            )
        return ""

    def _end_of(self, row: ScheduledMessage) -> str:
        """Which change took the message out of its delay, and when; "" for none."""
        done = self._done.get(row.pk)
        if done is None:
            return ""
        at = done.copied_at or done.ended_at
        changed = CHANGED_TO[ChangeKind(done.kind)]
        return f"The message was {changed} at {at:%Y-%m-%d %H:%M:%S} UTC."

    def _delay_problem(self, topology: Topology, row: ScheduledMessage) -> str:
        assert self._new_due_at is not None
        if not topology.forwarders and any(topology.pattern.delays(topology.parsed)):
            return (
                "The queues of this topology have fixed delays, so no queue exists for the "
                "remaining delay. Cancel the message, and publish a new one."
            )
        if self._new_due_at <= self._now:
            return (
                "The new due time is in the past. Enter a later time, or deliver the message now."
            )
        try:
            topology.pattern.route(topology.parsed, self._new_due_at - self._now, row.destination)
        except ParamsError as error:
            return str(error)
        return ""

    def _is_copied(self, due_at: datetime) -> bool:
        is_earlier = self._new_due_at is not None and self._new_due_at <= due_at
        return self._kind == ChangeKind.DELIVER_NOW or is_earlier

    def _point(self, topology: Topology, destination: str) -> Point | str:
        key = (topology.pk, destination)
        if key not in self._points:
            try:
                exchange, routing_key = exit_of(topology.pattern, topology.parsed, destination)
                self._points[key] = known_point(
                    topology.broker, self._snapshot(topology), exchange, routing_key
                )
            except (Unchangeable, ParamsError) as error:
                self._points[key] = str(error)
        return self._points[key]

    def _queue(self, broker: Broker, name: str) -> Mapping[str, Any]:
        """Raises NotFound for none, and BrokerError."""
        key = (broker.pk, name)
        if key not in self._queues:
            with Management(broker.address) as management:
                self._queues[key] = management.queue(name)
        return self._queues[key]

    def _snapshot(self, topology: Topology) -> Snapshot:
        broker = topology.broker
        if broker.pk not in self._snapshots:
            with Management(broker.address) as management:
                self._snapshots[broker.pk] = snapshots.for_action(
                    broker, management, topology.definitions
                )
        return self._snapshots[broker.pk]


def _find_obstacle(topology: Topology) -> str:
    """Why single messages of a topology cannot be changed; "" where they can."""
    try:
        if not topology.forwarders:
            exit_of(topology.pattern, topology.parsed, "")
    except (Unchangeable, ParamsError) as error:
        return str(error)
    return ""


def known_point(broker: Broker, snapshot: Snapshot, exchange: str, key: str) -> Point:
    """As `find_point`, in a snapshot without interceptions; those of others are in the way."""
    point = find_point(snapshot.definitions, exchange, key)
    names = [name for name, one in snapshot.intercepted.items() if one == point.queue]
    if names and not Interception.objects.filter(broker=broker, name__in=names).exists():
        raise Unchangeable(
            "Another installation of Delayboard intercepts this destination. Try again later."
        )
    return point
