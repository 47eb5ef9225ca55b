"""Which of some messages can be changed, when each change takes effect, and what else it touches.

Nothing is changed here: this is the dry run, and what a request begins with. A change is exact only
where each message comes from one exchange to one queue, or waits in a queue that can be read whole,
and where publishing it again does not change what its consumer decides by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.recorder.copies import STORED_BODY_BYTES, content_of
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
from topology.broker.properties.read import read_properties
from topology.content.text import count_text
from topology.definitions import Binding, Definitions
from topology.message import Message
from topology.models import Broker, State, Topology, WorkState
from topology.patterns.pattern import ParamsError, Pattern
from topology.routing.matching.index import Index
from topology.routing.matching.match import FORESEEABLE, steps
from topology.snapshot import Snapshot

# Time before the first due time at which the interception begins: a worker looks every second.
LEAD = timedelta(seconds=10)
# Time before the due time of a change for which the interception continues; with the lead alone it
# would end at once.
HORIZON = LEAD + timedelta(seconds=20)
# Time before its due time until which a message can be changed.
SHORTEST_NOTICE = timedelta(seconds=4)
NO_BODY = (
    "Delayboard has no body of this message, so it cannot publish a copy. Reschedule the message "
    "to a later time; for later messages, enable body storage on the page of the topology."
)
TOO_LARGE = (
    "The body of this message is larger than 64 KiB, so Delayboard did not store it and cannot "
    "publish a copy. Reschedule the message to a later time."
)
INCOMPLETE = (
    "Delayboard did not record every property of this message, so it cannot publish a copy."
)
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
ONLY_CANCEL = (
    "The messages of a retry can only be cancelled. For another time, Delayboard would publish the "
    "message again. From RabbitMQ 4.0 on, its x-death count then starts at zero, and the consumer "
    "would retry it too often."
)
# Limits of a queue that is read whole: its messages are held meanwhile.
MOST_READ = 20_000
MOST_BYTES = 256_000_000
_LENGTH_LIMITS = frozenset({"x-max-length", "x-max-length-bytes", "max-length", "max-length-bytes"})


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
        is_earlier = self._new_due_at is not None and self._new_due_at <= row.due_at
        is_copied = self._kind == ChangeKind.DELIVER_NOW or is_earlier
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
    """The point as `find_point` returns it, in a snapshot without interceptions; those of others
    are in the way.
    """
    point = find_point(snapshot.definitions, exchange, key)
    names = [name for name, one in snapshot.intercepted.items() if one == point.queue]
    if names and not Interception.objects.filter(broker=broker, name__in=names).exists():
        raise Unchangeable(
            "Another installation of Delayboard intercepts this destination. Try again later."
        )
    return point


def rebuild(row: ScheduledMessage) -> Message | str:
    """The message whose content has the recorded hash, or why there is none.

    Its properties are the bytes that were recorded, with every type and in their order.
    """
    if row.size > STORED_BODY_BYTES:
        return TOO_LARGE
    kept = ScheduledBody.objects.filter(message=row).first()
    if kept is None:
        return NO_BODY
    properties = read_properties(bytes(kept.properties))
    message = Message(row.exchange, row.routing_key, properties, bytes(kept.body))
    return message if content_of(message) == row.content_id else INCOMPLETE


class Unchangeable(Exception):
    """The messages of this destination cannot be changed; the sentence says why."""


class NoQueue(Unchangeable):
    """Just now, no queue receives the messages."""


@dataclass(frozen=True)
class Point:
    """The bindings from one exchange to one queue, which are replaced, the type of the queue that
    intercepts, and whether the intercepted queue rejects messages while it is full.

    kombu binds a queue by `orders` and `#.orders`: what comes without a delay matches both.
    """

    bindings: tuple[Binding, ...]
    queue_type: str
    rejects: bool = False

    @property
    def queue(self) -> str:
        return self.bindings[0].destination


def exit_of(pattern: Pattern, params: Any, destination: str) -> tuple[str, str]:
    """The exchange and key with which messages for a destination leave the delays.

    The default exchange has no binding to replace: its messages are changed in their delay queue
    (read_queue.py). Raises Unchangeable.
    """
    if problem := pattern.change_obstacle(params):
        raise Unchangeable(problem)
    return pattern.exit_of(params, destination)


def is_only_cancelled(pattern: Pattern) -> bool:
    """Whether its messages can get no other time: a new copy of one would be counted from zero."""
    return pattern.ATTEMPTS_COUNTED_BY == "x-death"


def find_point(found: Definitions, exchange: str, key: str) -> Point:
    """The path that every message with this key takes. Raises Unchangeable."""
    without = found.without_taps()
    reached: list[tuple[str, str]] = []
    for step in steps(Index.of(without), exchange, (key,), {}, ()):
        if step.exchange.type not in FORESEEABLE or step.exchange.type == "headers":
            raise Unchangeable(
                f"The exchange “{step.exchange.name}” does not route by the routing key alone. "
                "Bind the destination to an exchange that does."
            )
        reached += [(step.exchange.name, queue) for queue in step.queues]
    queues = sorted({queue for _, queue in reached})
    if not queues:
        raise NoQueue("No queue receives the messages of this destination.")
    if len(queues) > 1:
        names = ", ".join(f"“{queue}”" for queue in queues[:5])
        raise Unchangeable(f"Several queues receive these messages: {names}.")
    (queue,) = queues
    sources = sorted({source for source, _ in reached})
    if len(sources) > 1:
        names = ", ".join(f"“{source}”" for source in sources[:5])
        raise Unchangeable(
            f"The queue “{queue}” receives these messages from several exchanges: {names}. Bind it "
            "to one of them only."
        )
    there = found.queue(queue)
    is_quorum = there is not None and there.type == "quorum"
    levels = found.dying_into(exchange)
    is_quorum = is_quorum or any(level.type == "quorum" for level in levels)
    overflow = (there and there.arguments.text("x-overflow")) or ""
    kind = "quorum" if is_quorum else "classic"
    bindings = tuple(without.leads(sources[0], queue))
    return Point(bindings, kind, overflow.startswith("reject-publish"))


def unreadable(queue: Mapping[str, Any], destination: str) -> str:
    """Why a delay queue cannot be read and its messages put back in place; "" where it can.

    `queue` is the answer of the management API. Without a `destination` it may lead anywhere: then
    nothing is published in place of a message.
    """
    name, arguments = queue.get("name"), queue.get("arguments") or {}
    limits = {*arguments, *(queue.get("effective_policy_definition") or {})}
    leads = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
    kind = queue.get("type") or arguments.get("x-queue-type") or "classic"
    if kind != "classic":
        return (
            f"“{name}” is a {kind} queue. Only classic queues take messages back in their places "
            "without counting a failed delivery. Use classic delay queues, or delay levels."
        )
    if destination and leads != ("", destination):
        stated = ", ".join(f"“{one}”" if one else "none" for one in leads)
        return (
            f"“{name}” does not dead-letter to the queue “{destination}” alone: its dead-letter "
            f"exchange and routing key are {stated}. Wait until the message is delivered."
        )
    if limits & _LENGTH_LIMITS:
        return (
            f"“{name}” has a length limit, so RabbitMQ could drop messages that are put back. "
            "Remove the limit."
        )
    # The number of consumers is seconds old, their list is not.
    if queue.get("consumer_details", queue.get("consumers")):
        return f"“{name}” has consumers. Stop the consumers."
    if arguments.get("x-single-active-consumer"):
        return (
            f"“{name}” has x-single-active-consumer, so Delayboard cannot read it. Wait until the "
            "message is delivered."
        )
    if (queue.get("messages") or 0) > MOST_READ or (queue.get("message_bytes") or 0) > MOST_BYTES:
        return (
            f"“{name}” has more than {count_text(MOST_READ)} messages or "
            f"{MOST_BYTES // 1_000_000} MB. Wait until it has fewer, or use delay levels."
        )
    return ""
