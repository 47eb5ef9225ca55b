"""Scheduled messages: which wait in a delay, until when, and whether one was seen to arrive.

A projection of the tapped events: an entry adds a row, an exit closes one, in whichever
order they come. Without a message id the oldest open row of the same content closes. Rows that no
tap saw leave (taken out, moved, due before anybody looked) are closed here too.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models, transaction
from django.db.models import F, Q
from django.utils import timezone

from analytics import minutes
from analytics.events import MessageEvent
from analytics.models import RepeatedCopy, ScheduledBody, ScheduledMessage
from analytics.models.scheduled_message import REPLAYED, WAITING
from analytics.observation import is_stuck, stuck_ranges
from topology.models import Topology

_FIELDS = {field.attname: field for field in ScheduledMessage._meta.concrete_fields}
_DURATION = models.DurationField()
LONGEST_TRACKING_ID = 100
BATCH = 500


def without_repeats(topology: Topology, events: Sequence[MessageEvent]) -> list[MessageEvent]:
    """Remove copies that came before, in these events or in the rows.

    Only a redelivered copy of a message with an id can be recognized as a repeat. A replayed
    message begins at attempt 1 again, so its copies never count as repeats of its first delivery.
    An exit is not a repeat while a message waits for it: publishers reuse ids.

    Of another host's log the first copy may come after the redelivered one, with an earlier time of
    recording.
    """
    events = _without_first_copies(topology, events)
    doubtful = {event.key for event in events if _may_be_repeat(event)}
    if not doubtful:
        return list(events)
    rows = ScheduledMessage.objects.filter(topology=topology, key__in=doubtful)
    seen: set[tuple[str, str, int]] = set()
    waiting = Counter[tuple[str, int]]()
    for key, attempt, entered_at, left_at in rows.values_list(
        "key", "attempt", "entered_at", "left_at"
    ):
        seen |= {("scheduled", key, attempt)} if entered_at else set()
        seen |= {("delivered", key, attempt)} if left_at else set()
        waiting[key, attempt] += left_at is None
    fresh = []
    repeats = []
    for event in events:
        sighting = (event.kind, event.message_id, event.attempt)
        is_awaited = event.kind == "delivered" and waiting[event.key, event.attempt] > 0
        if _may_be_repeat(event) and sighting in seen and not is_awaited:
            continue
        if event.kind in ("scheduled", "delivered"):
            waiting[event.key, event.attempt] += 1 if event.kind == "scheduled" else -1
        if not event.replay_id:
            seen.add(sighting)
        fresh.append(event)
        if _may_be_repeat(event):
            named = {"kind": event.kind, "key": event.key, "attempt": event.attempt}
            repeats.append(RepeatedCopy(topology=topology, recorded_at=event.recorded_at, **named))
    RepeatedCopy.objects.bulk_create(repeats)
    return fresh


def _without_first_copies(
    topology: Topology, events: Sequence[MessageEvent]
) -> Sequence[MessageEvent]:
    """The events without those whose redelivered copies, recorded later, are in the rows
    already.
    """
    if not events:
        return events
    oldest = min(event.recorded_at for event in events)
    later = RepeatedCopy.objects.filter(topology=topology, recorded_at__gt=oldest)
    known = {
        (kind, key, attempt): (pk, at)
        for pk, kind, key, attempt, at in later.values_list(
            "pk", "kind", "key", "attempt", "recorded_at"
        )
    }
    if not known:
        return events
    rest, matched = [], []
    for event in events:
        sighting = (event.kind, event.key, event.attempt)
        pk, at = known.get(sighting, (0, event.recorded_at))
        if at > event.recorded_at and not event.redelivered:
            del known[sighting]
            matched.append(pk)
        else:
            rest.append(event)
    RepeatedCopy.objects.filter(pk__in=matched).delete()
    return rest


def _may_be_repeat(event: MessageEvent) -> bool:
    return event.redelivered and bool(event.message_id) and not event.replay_id


def project(topology: Topology, events: Iterable[MessageEvent]) -> list[Trip]:
    """Bring the rows up to these events; the trips that came to an end among them.

    Within the caller's transaction. A tracked or replayed message published past every delay
    leaves a row that has left at once, so that its arrival can be observed too; it ended no delay.
    """
    shown = [event for event in events if _is_projected(event)]
    trips = Trips(topology, {event.key for event in shown})
    for event in shown:
        if event.kind == "scheduled":
            trips.enter(event)
        elif event.kind == "delivered":
            trips.leave(event)
        else:
            trips.pass_by(event)
    trips.save()
    ended = (trip for trip in trips.touched if trip.left_at and trip.entered_at)
    return [trip for trip in ended if trip.left_at != trip.entered_at]


def _is_projected(event: MessageEvent) -> bool:
    is_tracked = event.tracking_id != "" or event.replay_id != ""
    return event.kind in ("scheduled", "delivered") or (event.kind == "published" and is_tracked)


@dataclass(slots=True, eq=False)
class Trip:
    """One trip of a message through a delay, as far as it is known.

    `row_id` is None until it is saved; `event` is the one that carries its message, where
    that is not saved yet.
    """

    key: str
    attempt: int
    destination: str
    caught_up: bool
    entered_at: datetime | None = None
    due_at: datetime | None = None
    left_at: datetime | None = None
    row_id: int | None = None
    event: MessageEvent | None = None


class Trips:
    """The trips of a topology with these keys of which only the entry or only the exit was seen.

    Read at once, changed in memory, saved at once, past the ORM's objects: an entry takes 30 µs of
    a processor and 110 by bulk_create, an exit 20 µs and 270 by bulk_update (20,000 of each,
    SQLite, 2026-11-28). At 2,000 messages a second the list would need three quarters of a core in
    place of a tenth, and people wait for it.
    """

    def __init__(self, topology: Topology, keys: Collection[str]) -> None:
        self._topology = topology
        self._half: dict[tuple[str, int], list[Trip]] = defaultdict(list)
        self._touched: dict[int, Trip] = {}
        half_known = Q(left_at=None) | Q(entered_at=None)
        rows = ScheduledMessage.objects.filter(half_known, topology=topology, key__in=keys)
        columns = ("key", "attempt", "destination", "caught_up")
        moments = ("entered_at", "due_at", "left_at", "id")
        for values in rows.order_by("entered_at", "id").values_list(*columns, *moments):
            trip = Trip(*values)
            self._half[trip.key, trip.attempt].append(trip)

    @property
    def touched(self) -> Collection[Trip]:
        return self._touched.values()

    def enter(self, event: MessageEvent) -> None:
        at = event.recorded_at
        trip = self._half_with(event, lambda trip: trip.left_at is not None and trip.left_at >= at)
        if trip is None:
            trip = self._begun(event)
        trip.event = event
        trip.entered_at, trip.due_at = at, event.due_at
        trip.caught_up = trip.caught_up and event.caught_up

    def leave(self, event: MessageEvent) -> None:
        at = event.recorded_at
        trip = self._half_with(
            event, lambda trip: trip.entered_at is not None and trip.entered_at <= at
        )
        if trip is None:
            trip = self._begun(event)
        trip.left_at = at
        trip.caught_up = trip.caught_up and event.caught_up

    def pass_by(self, event: MessageEvent) -> None:
        trip = self._begun(event)
        self._half[event.key, event.attempt].remove(trip)
        trip.entered_at = trip.due_at = trip.left_at = event.recorded_at

    def save(self) -> None:
        """Write everything, within the caller's transaction."""
        new = [trip for trip in self.touched if trip.row_id is None]
        known = [trip for trip in self.touched if trip.row_id is not None]
        self._insert(trip for trip in new if not _content(trip))
        for trip in new:
            if content := _content(trip):
                row = ScheduledMessage.objects.create(**self._values(trip))
                ScheduledBody.objects.create(message=row, **content)
        for trip in known:
            if trip.event is not None and trip.row_id is not None:
                ScheduledMessage.objects.filter(pk=trip.row_id).update(**self._values(trip))
        _leave(trip for trip in known if trip.event is None)

    def _half_with(self, event: MessageEvent, fits: Any) -> Trip | None:
        """The first that the event completes, which is then no longer half-known."""
        half = self._half[event.key, event.attempt]
        trip = next(filter(fits, half), None)
        if trip is not None:
            half.remove(trip)
            self._touched[id(trip)] = trip
        return trip

    def _begun(self, event: MessageEvent) -> Trip:
        trip = Trip(event.key, event.attempt, event.destination, event.caught_up, event=event)
        self._half[event.key, event.attempt].append(trip)
        self._touched[id(trip)] = trip
        return trip

    def _insert(self, trips: Iterable[Trip]) -> None:
        rows = [self._values(trip) for trip in trips]
        if not rows:
            return
        columns = [_column(name) for name in rows[0]]
        places = ", ".join(["%s"] * len(columns))
        names = ", ".join(columns)
        table = connection.ops.quote_name(ScheduledMessage._meta.db_table)
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({places})",  # noqa: S608
                [_adapted(row) for row in rows],
            )

    def _values(self, trip: Trip) -> dict[str, Any]:
        event = trip.event
        assert event is not None, "a trip that is not saved has an event"
        return {
            "broker_id": self._topology.broker_id,
            "topology_id": self._topology.pk,
            "key": trip.key,
            "message_id": event.message_id,
            "content_id": event.content_id,
            "tracking_id": tracking_id(event),
            "attempt": trip.attempt,
            "requested_delay": timedelta(milliseconds=event.requested_delay_ms),
            "entered_at": trip.entered_at,
            "due_at": trip.due_at,
            "left_at": trip.left_at,
            "destination": event.destination,
            "queue": event.queue,
            "size": event.size_bytes,
            "caught_up": trip.caught_up,
            "source": event.source,
            "correlation_id": event.correlation_id,
            "exchange": event.exchange,
            "routing_key": event.routing_key,
            "published_at": event.published_at,
            "published_at_source": event.published_at_source,
            "published_by": event.published_by,
            "content_type": event.content_type,
            "headers_json": event.headers_json,
        }


def tracking_id(event: MessageEvent) -> str:
    """What the message is followed by; a replay by its replay id, whoever tracked it before."""
    if event.replay_id:
        return f"{REPLAYED}{event.replay_id}"[:LONGEST_TRACKING_ID]
    return event.tracking_id


def _leave(trips: Iterable[Trip]) -> None:
    rows = [_adapted({"at": t.left_at, "caught_up": t.caught_up, "id": t.row_id}) for t in trips]
    if not rows:
        return
    table = connection.ops.quote_name(ScheduledMessage._meta.db_table)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET {_column('left_at')} = %s, {_column('caught_up')} = %s "  # noqa: S608
            f"WHERE {_column('id')} = %s",
            rows,
        )


def _column(name: str) -> str:
    return connection.ops.quote_name(str(_FIELDS[name].column))


def _adapted(row: Mapping[str, Any]) -> list[Any]:
    """The values as the database takes them."""
    moment = connection.ops.adapt_datetimefield_value
    values = []
    for value in row.values():
        if type(value) is datetime:
            values.append(moment(value))
        elif type(value) is timedelta:
            values.append(_DURATION.get_db_prep_value(value, connection))
        else:
            values.append(value)
    return values


def _content(trip: Trip) -> dict[str, bytes]:
    """What was kept of its content; of one that has left already, nothing is wanted any more."""
    event = trip.event
    if event is None or trip.left_at is not None:
        return {}
    if not event.body_base64 and not event.properties_base64:
        return {}
    return {
        "body": b64decode(event.body_base64),
        "properties": b64decode(event.properties_base64),
    }


def close_moved(topology: Topology, keys: Iterable[str]) -> None:
    """One open row for each key of those moved to another topology, the first that is due."""
    wanted = Counter(keys)
    closed = []
    with transaction.atomic():
        rows = ScheduledMessage.objects.filter(WAITING, topology=topology, key__in=wanted)
        for pk, key in rows.order_by("due_at", "pk").values_list("pk", "key"):
            if wanted[key]:
                wanted[key] -= 1
                closed.append(pk)
        close_rows(topology, closed)


def close_rows(topology: Topology, chosen: Collection[int]) -> None:
    """Close these of the topology that are open."""
    now = timezone.now()
    with transaction.atomic():
        rows = ScheduledMessage.objects.filter(topology=topology, pk__in=chosen, left_at=None)
        if number := rows.filter(entered_at__isnull=False).count():
            minutes.count_taken_out(topology, number, now)
        rows.update(left_at=now)


def settle(topologies: Iterable[Topology], moment: datetime) -> int:
    """Write down that what was due before `moment` has left when it was due; how many.

    Until then it was taken to have, unless it is stuck. Only for topologies whose exits no tap
    sees. Else all of it would be overdue for ever when the firehose begins to see what leaves.
    """
    return sum(
        settle_one(topology, moment) for topology in topologies if not topology.observes_arrivals
    )


def settle_one(topology: Topology, moment: datetime) -> int:
    """The same for one that had no tap before `moment`, whatever it has now."""
    open_rows = ScheduledMessage.objects.filter(
        WAITING, topology=topology, due_at__lt=moment
    ).exclude(is_stuck(stuck_ranges([topology.pk]), moment))
    total = 0
    while True:
        with transaction.atomic():
            rows = open_rows.select_for_update(of=("self",)).order_by("pk")
            found = list(rows.values_list("pk", flat=True)[:BATCH])
            left = ScheduledMessage.objects.filter(pk__in=found)
            left.update(left_at=F("due_at"), caught_up=False)
        total += len(found)
        if len(found) < BATCH:
            return total
