"""How many messages wait: the rows of the list themselves, exact up to MOST of them.

Indexes that contain what is counted let a database count MOST rows in hundredths of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from django.db.models import Count, F, QuerySet

from analytics import observation
from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import StuckRange
from analytics.scheduled.queries.listing import Filter
from topology.content.text import count_text
from topology.models import Broker, Topology

MOST = 100_000
# Name in an address -> how far a number over the list looks ahead.
SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


@dataclass(frozen=True)
class Scope:
    """The counted messages: topologies by id, and one destination of them or, for "", any.

    Messages of a topology that were due before its time in `delivered_before` count as delivered,
    unless they are `stuck`: of those that are `not_observed` all that were due at `now`, of others
    what was due before their observation began.
    """

    ids: tuple[int, ...]
    now: datetime
    not_observed: tuple[int, ...] = ()
    delivered_before: Mapping[int, datetime] = field(default_factory=dict)
    destination: str = ""
    stuck: tuple[StuckRange, ...] = ()

    def rows(
        self,
        from_at: datetime | None = None,
        until_at: datetime | None = None,
        *,
        is_ordered: bool = False,
    ) -> QuerySet[ScheduledMessage]:
        """What waits and is due from one moment on and before another.

        In no order; `is_ordered` is for who orders them by due time or destination.
        """
        # Without the sum SQLite reads its index by topologies to the end, and sorts that.
        topology = F("topology_id") + 0 if is_ordered else F("topology_id")
        rows = ScheduledMessage.objects.alias(of=topology).filter(WAITING, of__in=self.ids)
        if self.delivered_before:
            rows = rows.exclude(observation.due_before(self.delivered_before, self.stuck))
        if self.destination:
            rows = rows.filter(destination=self.destination)
        if from_at is not None:
            rows = rows.filter(due_at__gte=from_at)
        return (rows if until_at is None else rows.filter(due_at__lt=until_at)).order_by()

    def overdue_rows(self, after: timedelta = OVERDUE_AFTER) -> QuerySet[ScheduledMessage]:
        """The rows of messages that should have left so long ago, without a recorded exit."""
        return self.rows(until_at=self.now - after)

    def stuck_rows(
        self, from_at: datetime | None = None, until_at: datetime | None = None
    ) -> QuerySet[ScheduledMessage]:
        """The rows of messages that RabbitMQ cannot route."""
        rows = self.rows(from_at, until_at)
        return (
            rows.filter(observation.is_stuck(self.stuck, self.now)) if self.stuck else rows.none()
        )

    def only(self, topology_id: int) -> Scope:
        """One topology of it."""
        return replace(self, ids=tuple(pk for pk in self.ids if pk == topology_id))

    @cached_property
    def by_topology(self) -> Counter[int]:
        """How many wait in each topology, exact: what the queues hold is compared with it."""
        return count_by_topology(self.rows())


def scope(
    brokers: Iterable[Broker], now: datetime, *, topology_slug: str = "", destination: str = ""
) -> Scope:
    """Everything of these brokers, or of one topology there."""
    rows = Topology.objects.filter(broker__in=brokers)
    if topology_slug:
        rows = rows.filter(slug=topology_slug)
    return scope_of(list(rows), now, destination=destination)


def scope_of(topologies: Collection[Topology], now: datetime, *, destination: str = "") -> Scope:
    """Everything of these topologies."""
    not_observed, begun = observation.find_unobserved(topologies)
    ids = tuple(one.pk for one in topologies)
    return Scope(
        ids=ids,
        now=now,
        not_observed=not_observed,
        delivered_before=dict.fromkeys(not_observed, now) | begun,
        destination=destination,
        stuck=observation.stuck_ranges(ids),
    )


def count(rows: QuerySet[ScheduledMessage]) -> int:
    """How many they are; MOST + 1 when they are more than MOST."""
    return rows[: MOST + 1].count()


def describe(number: int) -> str:
    """A count in words: "1 200", "more than 100 000"."""
    return count_text(number) if number <= MOST else f"more than {count_text(MOST)}"


def count_by_topology(rows: QuerySet[ScheduledMessage]) -> Counter[int]:
    """Topology -> how many of the rows, exact."""
    # With the condition SQLite reads the index that has all of it.
    numbers = rows.filter(due_at__isnull=False).values_list("topology").annotate(Count("pk"))
    return Counter({pk: number for pk, number in numbers if pk is not None})


def find_horizon(scope: Scope, from_at: datetime, until_at: datetime) -> datetime:
    """The end of the range, or before it the moment up to which MOST of it are due."""
    due = (
        scope.rows(from_at, until_at, is_ordered=True)
        .order_by("due_at")
        .values_list("due_at", flat=True)
    )
    return next((at for at in due[MOST : MOST + 1] if at is not None), until_at)


@dataclass(frozen=True)
class Summary:
    """Numbers above counts.MOST are MOST + 1. `due_counts` is by SPANS and counts from now on;
    `matching` counts for the whole filter. Stuck messages are overdue too.
    """

    waiting: int
    overdue: int
    due_counts: tuple[int, ...]
    matching: int
    stuck: int = 0


def of_counts(scope: Scope, filters: Filter) -> Summary:
    """The summary of the scope; the filter's range, and overdue or stuck alone, apply to `matching`
    only.
    """
    now, until = scope.now, filters.until_at
    if filters.is_overdue:
        until = min(now - OVERDUE_AFTER, until or now)
    select = scope.stuck_rows if filters.is_stuck else scope.rows
    waiting = count(scope.rows())
    return Summary(
        waiting=waiting,
        overdue=count(scope.overdue_rows()),
        due_counts=tuple(count(scope.rows(now, now + span)) for span in SPANS.values()),
        matching=count(select(filters.from_at, until)) if filters.is_narrowed else waiting,
        stuck=count(scope.stuck_rows()),
    )
