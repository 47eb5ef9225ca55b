"""Counters per topology and minute: what entered its delays, left them, died, was late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import F, QuerySet

from analytics.events import MessageEvent
from analytics.models import Minute, ScheduledMessage
from topology.models import Topology

LATE = timedelta(seconds=1)


def since(topology: Topology, moment: datetime) -> QuerySet[Minute]:
    """The minutes from this one on, oldest first; a minute without a row had nothing."""
    start = _minute(moment)
    return Minute.objects.filter(topology=topology, minute_at__gte=start).order_by("minute_at")


def count(
    topology: Topology, events: Iterable[MessageEvent], closed: Iterable[ScheduledMessage]
) -> None:
    """Add these events, and of the rows that they closed the late ones, to their minutes.

    Within the caller's transaction.
    """
    for minute_at, counts in tally(events, closed).items():
        Minute.objects.get_or_create(topology=topology, minute_at=minute_at)
        Minute.objects.filter(topology=topology, minute_at=minute_at).update(
            **{name: F(name) + number for name, number in counts.items()}
        )


def tally(
    events: Iterable[MessageEvent], closed: Iterable[ScheduledMessage]
) -> dict[datetime, Counter[str]]:
    """Minute -> how many entered, left, died, late in it."""
    minutes: dict[datetime, Counter[str]] = defaultdict(Counter)
    for event in events:
        counts = minutes[_minute(event.recorded_at)]
        if event.kind == "scheduled":
            counts["entered"] += 1
            counts["died"] += bool(event.death_reason)
        elif event.kind == "delivered":
            counts["left"] += 1
    for row in closed:
        if row.left_at is not None and row.caught_up and (row.lateness or timedelta(0)) > LATE:
            minutes[_minute(row.left_at)]["late"] += 1
    return {minute_at: counts for minute_at, counts in minutes.items() if counts}


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
