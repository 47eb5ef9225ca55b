"""Moves waiting messages to delay levels, each with what is left of its delay.

By the one loop of everything that moves: a message is written down before it is published, and
acknowledged when the target has confirmed it and was looked at since: where a level has lost its
binding, the tap beside it confirms alone. A kill before the ack leaves the row: when the message
comes again, it is published again and marked, for it may be there twice. One that becomes due in
the source before the migration is resumed is delivered from there, too, and nothing can mark it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from django.db import transaction
from django.db.models import F

from analytics.recorder.copies import bounded, content_of
from analytics.scheduled.rows.close_moved import close_moved
from delayboard.delay_migration.check import look_at, refuse_unfit
from delayboard.delay_migration.due import Malformed, remaining
from delayboard.delay_migration.places import Place, list_places
from delayboard.models import DelayMigration, MovedMessage
from delayboard.publishing.destinations import Destinations
from delayboard.publishing.intercepted import without_intercepted
from topology import audit, work
from topology.broker.amqp.deliveries import Arrival
from topology.broker.amqp.fast_consumer import intake
from topology.broker.amqp.pipeline import Answer, Pipeline, pipeline
from topology.broker.errors import BrokerError, NotFound
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import strip_for_replay
from topology.definitions import Definitions, Queue
from topology.message import DOUBLED_HEADER, Message, Properties, Publish
from topology.models import Topology, WorkState
from topology.operations.ownership import Refusal
from topology.patterns.pattern import ParamsError
from topology.transfer.move import Step, move
from topology.transfer.queue_source import QueueSource, Taken

KIND = "migrate"
MALFORMED = "delayboard.malformed."
# A kill can double so many: half are on the way, half are confirmed and not acknowledged.
WINDOW = 100
PREFETCH = 200
# Publishers that are not switched over fill the source again.
MOST_PASSES = 5
# A queue counts as empty when nothing came for so long.
QUIET_SECONDS = 0.3
PULSE_SECONDS = 1.0


@dataclass
class Tally:
    """`left` are those that stayed where they were, and why the last of them did."""

    moved: int = 0
    malformed: int = 0
    doubled: int = 0
    left: int = 0
    why_left: str = ""
    is_empty: bool = False


class Mark(NamedTuple):
    """What a message on the way counts as, the row of it, and for whom it is; "" for malformed."""

    key: str
    row_key: str
    destination: str
    is_doubled: bool

    @property
    def is_malformed(self) -> bool:
        return not self.destination


def malformed_queue(source: Topology) -> str:
    return f"{MALFORMED}{source.slug}"


def migrate(
    source: Topology,
    target: Topology,
    *,
    owner: str,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Tally:
    """Move everything, the longest wait first, until a pass finds nothing or it is stopping.

    An interrupted migration is resumed. Raises Refusal, and BrokerError: calling again goes on.
    """
    refuse_unfit(source, target)
    places = list_places(source, look_at(source))
    destinations = Destinations(target)
    tally = Tally()
    with _working(source, target, owner) as (row, lease):
        run = _Run(row, lease, destinations, tally, is_stopping)
        with pipeline(target.broker.address, f"migration to {target.name}") as publishing:
            queue = Queue(malformed_queue(source))
            publishing.declare(Definitions(queues=frozenset({queue})))
            for _ in range(MOST_PASSES):
                before, tally.left = tally.moved + tally.malformed, 0
                for place in places:
                    run.empty(place, publishing)
                    run.write_counts()
                if is_stopping():
                    break
                if before == tally.moved + tally.malformed:
                    tally.is_empty = not tally.left
                    break
            if tally.is_empty:
                # Not before: a broker that is killed forgets acks of classic queues.
                row.begun.all().delete()
    return tally


@contextmanager
def _working(
    source: Topology, target: Topology, owner: str
) -> Iterator[tuple[DelayMigration, work.Lease]]:
    """The migration, new or left by one who died. Raises Refusal while another does it."""
    open_rows = DelayMigration.objects.filter(
        source=source, work__state__in=(WorkState.WAITING, WorkState.RUNNING)
    )
    with transaction.atomic():
        Topology.objects.select_for_update().get(pk=source.pk)
        row = open_rows.select_related("work").first()
        if row is None:
            own = work.ask(KIND, source.pk, broker=source.broker, user=None)
            row = DelayMigration.objects.create(source=source, target=target, work=own)
    if row.target_id != target.pk:
        raise Refusal(f"A migration to “{row.target}” was interrupted. Run it again until it ends.")
    claimed = work.claim_this(row.work, owner)
    if claimed is None:
        raise Refusal("Another process migrates this topology. Try again in 30 seconds.")
    lease = work.lease_of(claimed)
    with audit.recorded(
        None, "delays migrated", broker=source.broker, what=f"{source.name} to {target.name}"
    ):
        try:
            yield row, lease
        except BaseException as error:
            lease.give_back(str(error), after=timedelta(0))
            raise
    if row.begun.exists():
        lease.give_back("", after=timedelta(0))
    else:
        lease.end(WorkState.DONE)


class _Run:
    def __init__(
        self,
        row: DelayMigration,
        lease: work.Lease,
        destinations: Destinations,
        tally: Tally,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._row = row
        self._lease = lease
        self._destinations = destinations
        self._params = destinations.topology.parsed
        self._tally = tally
        self._is_stopping = is_stopping
        self._doubtful = set(row.begun.values_list("key", flat=True))
        self._declared: set[str] = set()
        self._pulsed = 0.0
        self._written = (0, 0, 0)

    def empty(self, place: Place, publishing: Pipeline[Taken[Mark]]) -> None:
        """Move what is in a queue, and leave what cannot be moved. Raises BrokerError, Stopped."""
        arrived = time.monotonic()

        def decide(arrival: Arrival) -> tuple[Publish, Mark] | Literal["drop"] | None:
            nonlocal arrived
            arrived = time.monotonic()
            return self._decide(place, arrival.message, publishing)

        def is_over() -> bool:
            is_quiet = time.monotonic() - arrived > QUIET_SECONDS
            is_idle = is_quiet and not source.unsettled and not taking.waiting
            return self._is_stopping() or (is_idle and taking.depth() == 0)

        try:
            with intake(self._row.source.broker.address, place.queue, prefetch=PREFETCH) as taking:
                source = QueueSource(taking, decide, self._settled, prefetch=PREFETCH)
                journal = _Journal(self._row, source, publishing, self._look_again)
                move(
                    journal,
                    publishing,
                    window=WINDOW // 2,
                    is_stopping=is_over,
                    turn=self._pulse,
                    idle_seconds=0,
                )
        except NotFound:
            return

    def _decide(
        self, place: Place, message: Message, publishing: Pipeline[Taken[Mark]]
    ) -> tuple[Publish, Mark] | None:
        now = datetime.now(UTC)
        name, content = message.properties.message_id or "", content_of(message)
        key, row_key = f"{name}:{content}"[:300], bounded(name) or content
        # Not only what is redelivered: it may have gone on to another level since.
        is_doubled = key in self._doubtful
        headers = {DOUBLED_HEADER: "1"} if is_doubled else {}
        try:
            due = place.read(message, now)
            properties = strip_for_replay(message.properties, headers)
        except (Malformed, FieldError):
            return self._malformed(message), Mark(key, row_key, "", is_doubled)
        try:
            self._bind(due.destination, publishing)
            route = self._destinations.topology.pattern.route(
                self._params, remaining(due.at, now), due.destination
            )
        except (ParamsError, Refusal, BrokerError) as error:
            self._leave(str(error))
            return None
        publish = Publish(route.exchange, route.routing_key, properties, message.body)
        return publish, Mark(key, row_key, due.destination, is_doubled)

    def _malformed(self, message: Message) -> Publish:
        queue = malformed_queue(self._row.source)
        return Publish("", queue, _stripped(message.properties), message.body)

    def _bind(self, destination: str, publishing: Pipeline[Taken[Mark]]) -> None:
        """Once for each destination. Raises Refusal and BrokerError."""
        if destination in self._declared:
            return
        if problem := self._destinations.problem(destination):
            raise Refusal(problem)
        target = self._destinations.topology
        route = target.pattern.route(self._params, timedelta(0), destination)
        declares = without_intercepted(route.declares, target.broker)
        with self._destinations.owning(destination, declares) as declared:
            publishing.declare(declares)
            declared()
        self._declared.add(destination)

    def _leave(self, why: str) -> None:
        self._tally.left += 1
        self._tally.why_left = why

    def _look_again(self, marks: Sequence[Mark]) -> None:
        """Whether more than a tap took them. Raises Refusal, and BrokerError."""
        self._destinations.look_again()
        for destination in {mark.destination for mark in marks if not mark.is_malformed}:
            if problem := self._destinations.problem(destination):
                raise Refusal(problem)

    def _settled(self, mark: Mark, answer: Answer) -> None:
        if answer.kind != "confirmed":
            if answer.kind == "unknown":
                self._doubtful.add(mark.key)
            self._leave(answer.error)
            return
        self._tally.moved += not mark.is_malformed
        self._tally.malformed += mark.is_malformed
        self._tally.doubled += mark.is_doubled or answer.again

    def _pulse(self) -> None:
        """Raises Stopped when another has it."""
        if time.monotonic() - self._pulsed > PULSE_SECONDS:
            self._pulsed = time.monotonic()
            self._lease.pulse(self._tally.moved, 0)
            self.write_counts()

    def write_counts(self) -> None:
        """Add to the row what was counted since."""
        now = (self._tally.moved, self._tally.malformed, self._tally.doubled)
        more = [number - known for number, known in zip(now, self._written, strict=True)]
        self._written = now
        if any(more):
            moved, malformed, doubled = more
            DelayMigration.objects.filter(pk=self._row.pk).update(
                moved=F("moved") + moved,
                malformed=F("malformed") + malformed,
                doubled=F("doubled") + doubled,
            )


class _Journal:
    """A queue whose messages are written down before they are published, and acknowledged when
    they are confirmed and `look` has raised nothing since.
    """

    def __init__(
        self,
        row: DelayMigration,
        queue: QueueSource[Mark],
        publishing: Pipeline[Taken[Mark]],
        look: Callable[[Sequence[Mark]], None],
    ) -> None:
        self._row = row
        self._queue = queue
        self._publishing = publishing
        self._look = look
        self._confirmed: list[tuple[Taken[Mark], Answer]] = []
        self._is_refused = False

    @property
    def is_exhausted(self) -> bool:
        return self._queue.is_exhausted

    def take(self, room: int) -> Sequence[Step[Taken[Mark]]]:
        steps = self._queue.take(room)
        if steps:
            MovedMessage.objects.bulk_create(
                MovedMessage(migration=self._row, key=step.token.mark.key) for step in steps
            )
        return steps

    def settle(self, answers: Sequence[tuple[Taken[Mark], Answer]]) -> None:
        if self._is_refused:
            return
        self._confirmed += [one for one in answers if one[1].kind == "confirmed"]
        if others := [one for one in answers if one[1].kind != "confirmed"]:
            self._queue.settle(others)
        is_full = len(self._confirmed) * 2 >= WINDOW
        if self._confirmed and (is_full or not self._publishing.flying):
            confirmed, self._confirmed = self._confirmed, []
            marks = [taken.mark for taken, _ in confirmed]
            # Once it raises, nothing more is acknowledged: of what is on the way, too, a tap may
            # be all that took it, though the binding is back at the next look.
            self._is_refused = True
            self._look(marks)
            self._is_refused = False
            self._queue.settle(confirmed)
            close_moved(self._row.source, [mark.row_key for mark in marks])


def _stripped(properties: Properties) -> Properties:
    try:
        return strip_for_replay(properties, {})
    except FieldError:
        return properties
