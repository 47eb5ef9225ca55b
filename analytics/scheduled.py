"""Scheduled messages: which wait in a delay, until when, and whether one was seen to arrive.

A projection of the tapped events: an entry adds a row, an exit closes one, in whichever
order they come. Without a message id the oldest open row of the same content closes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Q, QuerySet

from analytics.events import MessageEvent
from analytics.models import Recording, ScheduledMessage
from topology.models import Broker, State, Topology

# The recorder gathers copies for a moment before it shows them: that is not late yet.
OVERDUE_AFTER = timedelta(seconds=1)
# A recorder says every three seconds that it is there.
SILENT_AFTER = timedelta(seconds=20)


@dataclass(frozen=True)
class Observation:
    """What the taps saw of a tracked message's first trip; None is not seen yet.

    `lateness` is negative when it arrived early. When `caught_up` is false a recording was
    made late, so that the lateness may be the recorder's and not the broker's.
    """

    entered_at: datetime | None
    due_at: datetime | None
    arrived_at: datetime | None
    lateness: timedelta | None
    attempt: int
    caught_up: bool


def observation(tracking_id: str) -> Observation | None:
    """What was seen of the message with this tracking id; None when nothing was."""
    row = ScheduledMessage.objects.filter(tracking_id=tracking_id).exclude(tracking_id="")
    first = row.order_by("attempt", "id").first()
    if first is None:
        return None
    return Observation(
        entered_at=first.entered_at,
        due_at=first.due_at,
        arrived_at=first.left_at,
        lateness=first.lateness,
        attempt=first.attempt,
        caught_up=first.caught_up,
    )


def waiting(
    brokers: Iterable[Broker], *, topology_slug: str = "", now: datetime | None = None
) -> QuerySet[ScheduledMessage]:
    """What waits in the delays of these brokers, the soonest due first.

    Where nobody sees what leaves, a message is taken to have left when it was due.
    """
    rows = ScheduledMessage.objects.filter(
        broker__in=brokers, left_at=None, entered_at__isnull=False
    ).exclude(topology__in=Topology.unobserved(), due_at__lt=now or datetime.now(UTC))
    if topology_slug:
        rows = rows.filter(topology__slug=topology_slug)
    return rows.select_related("broker", "topology").order_by("due_at", "id")


def unread(brokers: Iterable[Broker], now: datetime) -> list[tuple[Topology, datetime | None]]:
    """Applied topologies whose tap nobody reads, and since when."""
    applied = Topology.objects.filter(broker__in=brokers, state=State.APPLIED)
    read_at = dict(Recording.objects.values_list("topology", "read_at"))
    last = [(row, read_at.get(row.pk, row.applied_at)) for row in applied if row.has_tap]
    return [(row, at) for row, at in last if at is None or now - at > SILENT_AFTER]


def overdue(rows: QuerySet[ScheduledMessage], now: datetime) -> QuerySet[ScheduledMessage]:
    """Those of the waiting rows that should have left, and nobody saw it."""
    return rows.filter(due_at__lt=now - OVERDUE_AFTER)


def page_after(
    rows: QuerySet[ScheduledMessage], place: tuple[datetime, int] | None, size: int
) -> list[ScheduledMessage]:
    """The `size` rows that follow the one with this due time and id; the first ones for None."""
    if place is not None:
        due_at, row_id = place
        rows = rows.filter(Q(due_at__gt=due_at) | Q(due_at=due_at, id__gt=row_id))
    return list(rows[:size])


def without_repeats(topology: Topology, events: Sequence[MessageEvent]) -> list[MessageEvent]:
    """Leave out copies that a crashed recorder had projected already.

    Only a redelivered copy of a message with an id can be told to be one. A replayed message
    begins at attempt 1 again, so its copies are never taken for repeats of its first life.
    """
    doubtful = {event.key for event in events if _may_be_repeat(event)}
    if not doubtful:
        return list(events)
    rows = ScheduledMessage.objects.filter(topology=topology, key__in=doubtful)
    seen = set()
    for key, attempt, entered_at, left_at in rows.values_list(
        "key", "attempt", "entered_at", "left_at"
    ):
        seen |= {("scheduled", key, attempt)} if entered_at else set()
        seen |= {("delivered", key, attempt)} if left_at else set()
    return [
        event
        for event in events
        if not (_may_be_repeat(event) and (event.kind, event.message_id, event.attempt) in seen)
    ]


def _may_be_repeat(event: MessageEvent) -> bool:
    return event.redelivered and bool(event.message_id) and not event.replay_id


def project(topology: Topology, events: Iterable[MessageEvent]) -> list[ScheduledMessage]:
    """Bring the rows up to these events; the rows that the exits among them closed.

    Within the caller's transaction. A tracked message published past every delay leaves a
    row that has left at once, so that its arrival can be observed too.
    """
    trips = [event for event in events if _is_projected(event)]
    rows = _Rows(topology, {event.key for event in trips})
    for event in trips:
        if event.kind == "scheduled":
            rows.enter(event)
        elif event.kind == "delivered":
            rows.leave(event)
        else:
            rows.pass_by(event)
    rows.save()
    return [row for row in rows.touched if row.left_at and row.entered_at]


def _is_projected(event: MessageEvent) -> bool:
    is_tracked = event.kind == "published" and event.tracking_id != ""
    return event.kind in ("scheduled", "delivered") or is_tracked


class _Rows:
    """The half-known rows of some keys: read at once, changed in memory, saved at once."""

    def __init__(self, topology: Topology, keys: Collection[str]) -> None:
        self._topology = topology
        self._half: dict[tuple[str, int], list[ScheduledMessage]] = defaultdict(list)
        self.touched: list[ScheduledMessage] = []
        half_known = Q(left_at=None) | Q(entered_at=None)
        rows = ScheduledMessage.objects.filter(half_known, topology=topology, key__in=keys)
        for row in rows.order_by("entered_at", "id"):
            self._half[row.key, row.attempt].append(row)

    def enter(self, event: MessageEvent) -> None:
        half = self._half[event.key, event.attempt]
        row = next((row for row in half if row.left_at and row.left_at >= event.recorded_at), None)
        row = self._completed(row, half) if row else self._begun(event, half)
        row.entered_at = event.recorded_at
        row.due_at = event.due_at
        row.queue = event.queue
        row.caught_up = row.caught_up and event.caught_up

    def leave(self, event: MessageEvent) -> None:
        half = self._half[event.key, event.attempt]
        row = next(
            (row for row in half if row.entered_at and row.entered_at <= event.recorded_at), None
        )
        row = self._completed(row, half) if row else self._begun(event, half)
        row.left_at = event.recorded_at
        row.caught_up = row.caught_up and event.caught_up

    def pass_by(self, event: MessageEvent) -> None:
        row = self._begun(event, [])
        row.entered_at = row.due_at = row.left_at = event.recorded_at

    def save(self) -> None:
        new = [row for row in self.touched if row.pk is None]
        known = [row for row in self.touched if row.pk is not None]
        ScheduledMessage.objects.bulk_create(new)
        ScheduledMessage.objects.bulk_update(
            known, ["entered_at", "due_at", "left_at", "queue", "caught_up"]
        )

    def _completed(self, row: ScheduledMessage, half: list[ScheduledMessage]) -> ScheduledMessage:
        half.remove(row)
        if not any(row is other for other in self.touched):
            self.touched.append(row)
        return row

    def _begun(self, event: MessageEvent, half: list[ScheduledMessage]) -> ScheduledMessage:
        row = ScheduledMessage(
            broker_id=self._topology.broker_id,
            topology=self._topology,
            key=event.key,
            message_id=event.message_id,
            content_id=event.content_id,
            tracking_id=event.tracking_id,
            attempt=event.attempt,
            requested_delay=timedelta(milliseconds=event.requested_delay_ms),
            destination=event.destination,
            queue=event.queue,
            size=event.size_bytes,
            caught_up=event.caught_up,
        )
        half.append(row)
        self.touched.append(row)
        return row
