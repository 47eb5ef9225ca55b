"""Scheduled messages: which wait in a delay, until when, and whether one was seen to arrive.

A projection of the tapped events: an entry adds a row, an exit closes one, in whichever
order they come. Without a message id the oldest open row of the same content closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from analytics.events import MessageEvent
from analytics.models import RepeatedCopy, ScheduledMessage
from analytics.scheduled.rows.trips import Trip, Trips
from topology.models import Topology


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
    """Without those whose redelivered copies, recorded later, are in the rows already."""
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
