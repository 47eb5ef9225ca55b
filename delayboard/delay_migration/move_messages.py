"""Moves the messages of a queue to delay levels, by the one loop of everything that moves.

A message is written down before it is published, and acknowledged when the target has confirmed it
and was looked at since: where a level has lost its binding, the tap beside it confirms alone. A
kill before the ack leaves the row: when the message comes again, it is published again and marked,
for it may be there twice.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from django.db import transaction
from django.db.models import F

from analytics import facts
from analytics.events import bounded
from analytics.models import ScheduledMessage
from analytics.recorder.copies import content_of
from analytics.scheduled.projection import close_moved
from delayboard.delay_migration.check import describe_too_long, read_depths
from delayboard.delay_migration.places import (
    Due,
    Malformed,
    Place,
    Undated,
    WrongStamp,
    remaining_delay,
)
from delayboard.models import DelayMigration, Interception, MovedMessage
from delayboard.publishing.destinations import Destinations
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.broker.errors import BrokerError, NotFound
from topology.broker.properties.field_values import FieldError
from topology.content.text import count_text
from topology.message import CHANGED_PROPERTIES, Message, Publish, Route
from topology.models import Topology
from topology.operations.answers import NackCheck
from topology.operations.ownership import Refusal
from topology.patterns.pattern import ParamsError
from topology.transfer.move import QueueSource, Step, Taken, move
from topology.transfer.prepare import prepare

MALFORMED = "delayboard.malformed."
QUEUE_HEADER = "x-opt-delayboard-migrated-from"
ROUTING_KEY_HEADER = "x-opt-delayboard-routing-key"
REASON_HEADER = "x-opt-delayboard-reason"
# Messages that a kill can double: half are in flight, half are confirmed and not acknowledged.
WINDOW = 100
# Prefetch of the source, as many as are published at once: a message that waits here while the
# target is checked could not leave the source when it is due.
PREFETCH = WINDOW // 2
# Seconds without a message after which a queue counts as empty.
QUIET_SECONDS = 0.3
PULSE_SECONDS = 1.0
# Equal messages that are compared, and the time within which their due times count as equal.
MOST_TWINS, TWINS_WITHIN = 100, timedelta(seconds=0.5)
# Most reasons that are shown why messages remain.
SHOWN = 5
# Seconds until the broker has reported what a queue holds: it does so every five.
REPORT_SECONDS = 6.0
# Time until a killed migration is resumed: its lease, and the start of a worker. A message due
# within it may leave the source before, and is marked from its first publish on.
RESUMED_WITHIN = work.LEASE + timedelta(seconds=10)


@dataclass
class Tally:
    """`remaining` messages were not moved, `reasons` counts why. `doubled` are marked, because they
    may be in the target twice. `unacknowledged` says which messages another consumer has without
    an ack, "" for none.
    """

    moved: int = 0
    malformed: int = 0
    doubled: int = 0
    remaining: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unacknowledged: str = ""
    undated: int = 0
    is_empty: bool = False

    @property
    def why_remaining(self) -> str:
        """A sentence for each reason, the most frequent first."""
        if len(self.reasons) < 2:
            return "".join(self.reasons)
        return " ".join(f"{count_text(n)}: {why}" for why, n in self.reasons.most_common(SHOWN))

    def leave(self, why: str) -> None:
        self.remaining += 1
        self.reasons[why] += 1

    def forget_remaining(self) -> None:
        """Another pass begins."""
        self.remaining = self.undated = 0
        self.reasons.clear()


def malformed_queue(source: Topology) -> str:
    return f"{MALFORMED}{source.slug}"


@dataclass
class Run:
    """`begun_in` is the queue in which an interrupted migration goes on; "" for one that begins."""

    row: DelayMigration
    lease: work.Lease
    destinations: Destinations
    tally: Tally
    is_stopping: Callable[[], bool]
    alive: Callable[[], None]
    is_paused: bool = False
    _declared: set[str] = field(default_factory=set)
    _pulsed: float = 0.0
    _written: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        self._params = self.destinations.topology.parsed
        self._nacks = NackCheck(self.destinations.topology.broker)
        rows = self.row.begun.order_by("pk")
        self.begun_in = rows.values_list("queue", flat=True).last() or ""
        # The rows that an interrupted migration left, by key.
        self._begun: dict[str, list[int]] = defaultdict(list)
        for pk, key in rows.values_list("pk", "key"):
            self._begun[key].append(pk)
        self._doubtful = set(self._begun)

    @property
    def is_over(self) -> bool:
        """Whether it was paused, or the process stops."""
        return self.is_paused or self.is_stopping()

    def empty(self, place: Place, publishing: Pipeline[Taken[Mark]]) -> None:
        """Move what is in a queue, and leave what cannot be moved. Raises BrokerError, Stopped."""
        arrived = time.monotonic()
        address = self.row.source.broker.address
        # Most of 28 levels are empty, and consuming one takes far longer.
        if not live_depths(address, [place.queue]).get(place.queue):
            self._pulse()
            return

        def decide(arrival: Delivery) -> tuple[Publish, Mark] | Literal["drop"] | None:
            nonlocal arrived
            arrived = time.monotonic()
            return self._decide(place, arrival.message, publishing)

        def explain_nack(answer: Answer) -> Answer:
            with taking.attended():
                return self._nacks.settle(answer)

        def is_over() -> bool:
            is_quiet = time.monotonic() - arrived > QUIET_SECONDS
            is_idle = is_quiet and not source.unsettled and not taking.waiting
            return self.is_over or (is_idle and taking.depth() == 0)

        try:
            with Consumer(address, place.queue, prefetch=PREFETCH, in_thread=False) as taking:
                source = QueueSource(taking, decide, self._count, prefetch=PREFETCH)
                recorded = RecordedQueue(
                    self.row,
                    self._begun,
                    place.queue,
                    source,
                    publishing,
                    aim=self._aim,
                    check=self._check_again,
                )
                move(
                    recorded,
                    publishing,
                    window=WINDOW // 2,
                    is_stopping=is_over,
                    turn=self._pulse,
                    idle_seconds=0,
                    explain_nack=explain_nack,
                )
        except NotFound:
            return

    def describe_unacknowledged(self, places: Sequence[Place]) -> str:
        """Which messages another consumer has without an ack; "" for none.

        Raises BrokerError, Stopped.

        The broker's last report may still count ours.
        """
        source, names = self.row.source, [place.queue for place in places]
        until = time.monotonic() + REPORT_SECONDS
        while unacknowledged := read_depths(source, names, "messages_unacknowledged"):
            if time.monotonic() > until or self.is_over:
                queue, number = next(iter(unacknowledged.items()))
                return (
                    f"Another consumer received messages of “{queue}” and did not acknowledge "
                    f"them: {number}. Stop the consumer."
                )
            self._pulse()
            time.sleep(QUIET_SECONDS)
        return ""

    def _decide(
        self, place: Place, message: Message, publishing: Pipeline[Taken[Mark]]
    ) -> tuple[Publish, Mark] | None:
        now = datetime.now(UTC)
        name, content = message.properties.message_id or "", content_of(message)
        key, row_key = f"{name}:{content}"[:300], bounded(name) or content
        # Not only what is redelivered: it may have gone on to another level since.
        is_doubled = key in self._doubtful
        # Equal messages without an id are others, unless the broker marks them.
        is_again = is_doubled and (bool(name) or message.redelivered)
        malformed = Mark(key, row_key, "", is_doubled, is_again=is_again)
        try:
            due = self._read(place, message, now, row_key, content)
            is_doubled = is_doubled or due.at < now + RESUMED_WITHIN
            publish = prepare(
                Route("", ""),
                message.properties,
                message.body,
                {},
                may_be_duplicated=is_doubled,
                # It would expire in a level. RabbitMQ deletes it, too, from what leaves a queue.
                drop=CHANGED_PROPERTIES,
            )
        except Undated as error:
            if self.row.takes_undated and not isinstance(error, WrongStamp):
                return self._make_malformed(place, message, malformed, error), malformed
            self.tally.leave(str(error))
            self.tally.undated += not isinstance(error, WrongStamp)
            return None
        except (Malformed, FieldError) as error:
            return self._make_malformed(place, message, malformed, error), malformed
        try:
            if problem := describe_too_long(self.destinations.topology, due.at - now):
                raise Refusal(problem)
            self._bind(due.destination, publishing)
            mark = Mark(key, row_key, due.destination, is_doubled, due.at, is_again)
            return self._aim(publish, mark), mark
        except (ParamsError, Refusal, BrokerError) as error:
            self.tally.leave(str(error))
            return None

    def _read(
        self, place: Place, message: Message, now: datetime, row_key: str, content: str
    ) -> Due:
        """The due time of a message; without a publish time the recorded one, if only one can be
        meant.

        Raises Malformed.
        """
        try:
            return place.read(message, now, None)
        except Undated:
            rows = ScheduledMessage.objects.filter(
                topology=self.row.source,
                key=row_key,
                content_id=content,
                left_at=None,
                entered_at__isnull=False,
            )
            known = list(rows.values_list("due_at", flat=True)[:MOST_TWINS])
            dues = sorted(at for at in known if at is not None)
            # The latest one, so that none of them is early.
            is_one = bool(dues) and len(known) < MOST_TWINS and dues[-1] - dues[0] <= TWINS_WITHIN
            return place.read(message, now, dues[-1] if is_one else None)

    def _aim(self, publish: Publish, mark: Mark) -> Publish:
        """The publish to the target, with what is left of the delay. Raises ParamsError."""
        if mark.due_at is None:
            return publish
        delay = remaining_delay(mark.due_at, datetime.now(UTC))
        route = self.destinations.topology.pattern.route(self._params, delay, mark.destination)
        return replace(publish, exchange=route.exchange, routing_key=route.routing_key)

    def _make_malformed(
        self, place: Place, message: Message, mark: Mark, why: Exception
    ) -> Publish:
        """With what only its routing key says: the delay and the destination."""
        stated = {
            QUEUE_HEADER: place.queue,
            ROUTING_KEY_HEADER: message.routing_key,
            REASON_HEADER: str(why),
        }
        return prepare(
            Route("", malformed_queue(self.row.source)),
            message.properties,
            message.body,
            stated,
            may_be_duplicated=mark.is_doubled,
            # Without its expiration, too: it waits there until somebody comes.
            drop=CHANGED_PROPERTIES,
            is_tolerant=True,
        )

    def _bind(self, destination: str, publishing: Pipeline[Taken[Mark]]) -> None:
        """Bind each destination once. Raises Refusal and BrokerError."""
        if destination in self._declared:
            return
        if problem := self.destinations.problem(destination):
            raise Refusal(problem)
        target = self.destinations.topology
        route = target.pattern.route(self._params, timedelta(0), destination)
        declares = Interception.without_replaced(route.declares, target.broker)
        with self.destinations.owning(destination, declares) as declared:
            publishing.declare(declares)
            declared()
        self._declared.add(destination)

    def _check_again(self, marks: Sequence[Mark]) -> None:
        """Whether more than a tap took them. Raises Refusal, and BrokerError."""
        self.destinations.check_again()
        for destination in {mark.destination for mark in marks if not mark.is_malformed}:
            if problem := self.destinations.problem(destination):
                raise Refusal(problem)

    def _count(self, mark: Mark, answer: Answer) -> None:
        if answer.kind != "confirmed":
            if answer.may_have_arrived:
                self._doubtful.add(mark.key)
            self.tally.leave(answer.error)
            return
        self.tally.moved += not mark.is_malformed
        self.tally.malformed += mark.is_malformed
        self.tally.doubled += mark.is_doubled or answer.again

    def _pulse(self) -> None:
        """Raises Stopped when another has it."""
        if time.monotonic() - self._pulsed > PULSE_SECONDS:
            self.alive()
            self._pulsed = time.monotonic()
            try:
                self.lease.pulse(self.tally.moved, 0)
            except work.Paused:
                self.is_paused = True
            self.write_counts()

    def write_counts(self) -> None:
        """Add to the row what was counted since."""
        now = (self.tally.moved, self.tally.malformed, self.tally.doubled)
        more = [number - known for number, known in zip(now, self._written, strict=True)]
        self._written = now
        if any(more):
            moved, malformed, doubled = more
            DelayMigration.objects.filter(pk=self.row.pk).update(
                moved=F("moved") + moved,
                malformed=F("malformed") + malformed,
                doubled=F("doubled") + doubled,
            )


class Mark(NamedTuple):
    """What a message on the way counts as, the row of it, for whom it is, "" for malformed, when it
    is due, and whether a killed migration may have moved it before.
    """

    key: str
    row_key: str
    destination: str
    is_doubled: bool
    due_at: datetime | None = None
    is_again: bool = False

    @property
    def is_malformed(self) -> bool:
        return not self.destination


@dataclass
class RecordedQueue:
    """A queue whose messages are written down before they are published, and acknowledged when
    they are confirmed, `check` has raised nothing since, and it is written down that they moved.
    `aim` gives each publish its remaining delay, after its row is committed: a busy disk makes no
    message late.
    """

    row: DelayMigration
    begun: Mapping[str, list[int]]
    name: str
    queue: QueueSource[Mark]
    publishing: Pipeline[Taken[Mark]]
    aim: Callable[[Publish, Mark], Publish]
    check: Callable[[Sequence[Mark]], None]
    _confirmed: list[tuple[Taken[Mark], Answer]] = field(default_factory=list)
    _is_refused: bool = False
    _not_arrived: dict[int, tuple[int, Publish]] = field(default_factory=dict)

    @property
    def is_exhausted(self) -> bool:
        return self.queue.is_exhausted

    def take(self, room: int) -> Sequence[Step[Taken[Mark]]]:
        steps = self.queue.take(room)
        new = []
        for token, publish in steps:
            mark = token.mark
            if mark.is_again and self.begun.get(mark.key):
                # The last of equal ones: the others are acknowledged.
                self._not_arrived[token.tag] = self.begun[mark.key].pop(), publish
            else:
                row = MovedMessage(migration=self.row, key=mark.key, queue=self.name)
                new.append((row, token.tag, publish))
        if new:
            MovedMessage.objects.bulk_create(row for row, _, _ in new)
            self._not_arrived |= {tag: (row.pk, publish) for row, tag, publish in new}
        return [Step(token, self.aim(publish, token.mark)) for token, publish in steps]

    def settle(self, answers: Sequence[tuple[Taken[Mark], Answer]]) -> None:
        if self._is_refused:
            return
        self._confirmed += [one for one in answers if one[1].kind == "confirmed"]
        if others := [one for one in answers if one[1].kind != "confirmed"]:
            for taken, _ in others:
                pk, _ = self._not_arrived.pop(taken.tag)
                if taken.mark.is_again:
                    self.begun[taken.mark.key].append(pk)
            self.queue.settle(others)
        is_full = len(self._confirmed) * 2 >= WINDOW
        if self._confirmed and (is_full or not self.publishing.in_flight):
            confirmed, self._confirmed = self._confirmed, []
            marks = [taken.mark for taken, _ in confirmed]
            # Once it raises, nothing more is acknowledged: of what is on the way, too, a tap may
            # be all that took it, though the binding is back at the next look.
            self._is_refused = True
            self.check(marks)
            self._is_refused = False
            self._write_down([taken for taken, _ in confirmed])
            self.queue.settle(confirmed)

    def _write_down(self, moved: Sequence[Taken[Mark]]) -> None:
        """Record that messages left the source, which no tap sees; after a kill once more, by the
        same id.
        """
        source, now = self.row.source, datetime.now(UTC)
        began = f"{self.row.created_at:%Y%m%d%H%M%S%f}"
        with transaction.atomic():
            close_moved(source, [taken.mark.row_key for taken in moved])
            for taken in moved:
                pk, publish = self._not_arrived.pop(taken.tag)
                facts.state(
                    kind="moved",
                    broker=source.broker,
                    topology=source,
                    message=publish,
                    destination=taken.mark.destination,
                    at=now,
                    event_id=f"moved:{began}:{pk}",
                )
