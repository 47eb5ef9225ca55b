"""What waits in the delays, until when, and what should have left by now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import F, Q, QuerySet

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import LEFT, WAITING, measure_lateness
from analytics.observation import is_presumed_delivered, is_stuck, stuck_ranges
from analytics.scheduled.queries.filter import Filter
from topology.database import paging
from topology.models import Broker, Topology


class AmbiguousId(ValueError):
    """A name means messages in two ways; the message says what to use."""


@dataclass(frozen=True)
class Observation:
    """What the taps saw of a tracked message's first trip; None is not seen yet.

    `message` is the number of its row. `lateness` is negative when it arrived early. When
    `caught_up` is false a recording was made late, so that the lateness may be the recorder's and
    not the broker's.
    """

    message: int
    entered_at: datetime | None
    due_at: datetime | None
    arrived_at: datetime | None
    lateness: timedelta | None
    attempt: int
    caught_up: bool


def read_observations(tracking_ids: Collection[str]) -> dict[str, Observation]:
    """What was seen of the messages with these tracking ids, where anything was."""
    rows = ScheduledMessage.objects.filter(tracking_id__in=tracking_ids).exclude(tracking_id="")
    # The first attempt is the last to be kept.
    return {row.tracking_id: _observe(row) for row in rows.order_by("-attempt", "-id")}


def _observe(row: ScheduledMessage) -> Observation:
    is_seen = row.ending == LEFT
    return Observation(
        message=row.pk,
        entered_at=row.entered_at,
        due_at=row.due_at,
        arrived_at=row.left_at if is_seen else None,
        lateness=measure_lateness(row) if is_seen else None,
        attempt=row.attempt,
        caught_up=row.caught_up,
    )


def waiting(
    brokers: Iterable[Broker],
    *,
    topology_slug: str = "",
    now: datetime | None = None,
    delivered: Q | None = None,
) -> QuerySet[ScheduledMessage]:
    """The waiting messages of these brokers, the soonest due first.

    Without observed deliveries, a message counts as delivered when it was due, unless it is stuck:
    `delivered` selects these rows, if the caller has it.
    """
    rows = ScheduledMessage.objects.filter(WAITING)
    visible = [broker.pk for broker in brokers]
    if connection.vendor == "sqlite":
        # Without the sum SQLite reads its index by brokers to the end, and sorts that.
        rows = rows.alias(of_broker=F("broker_id") + 0).filter(of_broker__in=visible)
    else:
        rows = rows.filter(broker__in=visible)
    rows = rows.exclude(
        is_presumed_delivered(now or datetime.now(UTC)) if delivered is None else delivered
    )
    if topology_slug:
        named = Topology.objects.filter(slug=topology_slug).values_list("pk", flat=True)
        rows = rows.filter(topology__in=list(named))
    return rows.select_related("broker", "topology").order_by("due_at", "id")


def filter_waiting(
    brokers: Iterable[Broker], filters: Filter, now: datetime, *, delivered: Q | None = None
) -> QuerySet[ScheduledMessage]:
    """The waiting rows that match a filter, without its text; `delivered` as in `waiting`."""
    rows = waiting(brokers, topology_slug=filters.topology, now=now, delivered=delivered)
    if filters.destination:
        rows = rows.filter(destination=filters.destination)
    if filters.from_at is not None:
        rows = rows.filter(due_at__gte=filters.from_at)
    if filters.until_at is not None:
        rows = rows.filter(due_at__lt=filters.until_at)
    if filters.is_stuck:
        rows = rows.filter(is_stuck(stuck_ranges(), now))
    return rows.filter(due_at__lt=now - OVERDUE_AFTER) if filters.is_overdue else rows


def read_ids(rows: QuerySet[ScheduledMessage], names: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the rows that each of these names means; a name of none is omitted.

    A name is a message id, or the content id of a message without one; else a correlation id,
    which for Celery is the task's id; else the number of a row. Raises AmbiguousId for a name that
    is the number of one message and the id of another.
    """
    numbers = {name: number for name in names if (number := paging.row_number(name)) is not None}
    named = Q(key__in=names) | Q(correlation_id__in=names) | Q(pk__in=numbers.values())
    by_name: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in names}
    numbered = set()
    for row_id, *ids in rows.filter(named).values_list("pk", "key", "correlation_id"):
        numbered.add(row_id)
        for kind, name in zip(("key", "correlation"), ids, strict=True):
            if name in by_name:
                by_name[name][kind].add(row_id)
    found = {name: kinds["key"] or kinds["correlation"] for name, kinds in by_name.items()}
    for name, number in numbers.items():
        if number in numbered and found[name] - {number}:
            raise AmbiguousId(
                f"“{name}” is the number of one message and the id of another. Use the message id "
                "or the content id."
            )
        found[name] |= {number} & numbered
    return {name: ids for name, ids in found.items() if ids}


def after_row(
    rows: QuerySet[ScheduledMessage], row: ScheduledMessage | None
) -> QuerySet[ScheduledMessage]:
    """The rows, in due order or reversed, that follow this one; all of them for None."""
    if row is None or row.due_at is None:
        return rows
    if rows.query.standard_ordering:
        # The first condition alone lets the index begin there.
        return rows.filter(due_at__gte=row.due_at).exclude(due_at=row.due_at, id__lte=row.pk)
    return rows.filter(due_at__lte=row.due_at).exclude(due_at=row.due_at, id__gte=row.pk)
