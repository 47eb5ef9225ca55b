"""How many messages fall due when: sums of DueCount, so that nobody counts a million rows.

Exact to the microsecond: days where whole ones fit, hours and minutes at the edges, and the
rows themselves within the minute that an edge cuts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TypeVar

from django.db.models import Case, CharField, Count, Max, Min, Q, QuerySet, Sum, When

from analytics import observation
from analytics.models import DueCount, ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import StuckRange
from analytics.scheduled.rows.due_counts import DAY, HOUR, MINUTE, WIDTHS, floor
from analytics.scheduled.rows.sums import BarNumber, Group, Points, summed, unite
from topology.models import Broker, Topology

Row = TypeVar("Row", ScheduledMessage, DueCount)


@dataclass(frozen=True)
class Scope:
    """The counted messages: topologies by id, and one destination of them or, for "", any.

    Of `not_observed` topologies only messages not due at `now` wait, because their deliveries are
    not observed. In `begun` ones messages due before their time count as delivered: observation
    began then. Values read once are cached, so a scope is for one page. A `stuck` message never
    counts as delivered.
    """

    seen: tuple[int, ...]
    not_observed: tuple[int, ...]
    now: datetime
    destination: str = ""
    begun: tuple[tuple[int, datetime], ...] = ()
    stuck: tuple[StuckRange, ...] = ()

    @cached_property
    def all_stuck(self) -> QuerySet[ScheduledMessage] | None:
        """The rows that are stuck; None where nothing is."""
        return self.waiting(observation.is_stuck(self.stuck, self.now)) if self.stuck else None

    @cached_property
    def stored(self) -> QuerySet[ScheduledMessage] | None:
        """The stuck rows that would count as delivered because they were due; None for none."""
        if not any(one.topology in self.delivered_before for one in self.stuck):
            return None
        return self.waiting(
            observation.is_stuck(self.stuck, self.now, before=self.delivered_before)
        )

    def stored_beside(self, width: int) -> QuerySet[ScheduledMessage] | None:
        """Those of them that the counts of this width exclude as delivered; None for none."""
        if self.stored is None:
            return None
        moments = {pk: floor(at, width) for pk, at in self.delivered_before.items()}
        return self.waiting(observation.is_stuck(self.stuck, self.now, before=moments))

    def waiting(self, which: Q) -> QuerySet[ScheduledMessage]:
        """The rows themselves, of those that a condition selects."""
        rows = ScheduledMessage.objects.filter(which, WAITING)
        return (rows.filter(destination=self.destination) if self.destination else rows).order_by()

    @cached_property
    def delivered_before(self) -> Mapping[int, datetime]:
        """Topology -> messages of it that were due before this time count as delivered."""
        return dict.fromkeys(self.not_observed, self.now) | dict(self.begun)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return (*self.seen, *self.delivered_before)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The topologies by the time before which due messages count as delivered."""
        together: dict[datetime | None, list[int]] = defaultdict(list)
        for pk in self.ids:
            together[self.delivered_before.get(pk)].append(pk)
        return tuple(Group(ids, self.destination, at) for at, ids in together.items())

    @cached_property
    def totals(self) -> Sequence[tuple[int, str, int, int]]:
        """Topology, destination, how many wait, how many of them since before today.

        By whole days.
        """
        is_late = Q(due_at__lt=floor(self.now, DAY))
        sums = still_to_come(self, DAY).order_by().values_list("topology", "destination")
        late = Sum("waiting", filter=is_late, default=0)
        return list(sums.annotate(number=Sum("waiting"), late=late))

    def only(self, topology_id: int) -> Scope:
        """One topology of it."""
        return replace(
            self,
            seen=tuple(pk for pk in self.seen if pk == topology_id),
            not_observed=tuple(pk for pk in self.not_observed if pk == topology_id),
            begun=tuple(one for one in self.begun if one[0] == topology_id),
            stuck=tuple(one for one in self.stuck if one.topology == topology_id),
        )


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
    blind = {*not_observed, *begun}
    return Scope(
        seen=tuple(one.pk for one in topologies if one.pk not in blind),
        not_observed=not_observed,
        now=now,
        destination=destination,
        begun=tuple(begun.items()),
        stuck=observation.stuck_ranges([one.pk for one in topologies]),
    )


def count_stuck(
    scope: Scope, from_at: datetime | None = None, until_at: datetime | None = None
) -> int:
    """How many are stuck, of those due from one moment on and before another."""
    rows = scope.all_stuck
    return 0 if rows is None else _within(rows, from_at, until_at).count()


def stuck_by_topology(scope: Scope, *, until_at: datetime | None = None) -> Counter[int]:
    """Topology -> how many of it are stuck, of those due before this moment if one is given."""
    rows = scope.all_stuck
    return _number_by_topology(None if rows is None else _within(rows, None, until_at))


def before(scope: Scope, points: Points) -> list[int]:
    """How many wait that are due before each of these moments; None is the end of time."""
    numbers = [group.before(points) for group in scope.groups]
    if scope.stored is not None:
        numbers.append(_stored_before(scope.stored, points))
    return [sum(of_point) for of_point in zip(*numbers, strict=True)] or [0] * len(points)


def _stored_before(kept: QuerySet[ScheduledMessage], points: Points) -> list[int]:
    counted = {
        f"number_{place}": Count("pk", filter=Q() if point is None else Q(due_at__lt=point))
        for place, point in enumerate(points)
    }
    found = kept.aggregate(**counted)
    return [found[name] for name in counted]


def destinations(
    scope: Scope, from_at: datetime | None, until_at: datetime | None
) -> dict[str, int]:
    """How many wait for whom, about: by whole days or hours; the most first."""
    numbers = Counter[str]()
    is_all = _is_all(scope, from_at, until_at)
    if is_all:
        for _, destination, number, _ in scope.totals:
            numbers[destination] += number
    else:
        rows = _within(still_to_come(scope, HOUR), from_at and floor(from_at, HOUR), until_at)
        sums = rows.order_by().values_list("destination").annotate(number=Sum("waiting"))
        numbers.update(dict(sums))
    kept = scope.stored_beside(DAY if is_all else HOUR)
    if kept is not None:
        rows_kept = _within(kept, from_at, until_at).values_list("destination")
        numbers.update(dict(rows_kept.annotate(number=Count("pk"))))
    found = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))
    return {destination: number for destination, number in found if number > 0}


def _is_all(scope: Scope, from_at: datetime | None, until_at: datetime | None) -> bool:
    """Whether no day in which something falls due lies outside of the range."""
    if from_at is None and until_at is None:
        return True
    days = _days(scope)
    is_early = from_at is not None and any(at < floor(from_at, DAY) for at in days)
    return not is_early and (until_at is None or all(at < until_at for at in days))


def by_time(
    scope: Scope, from_at: datetime, until_at: datetime, named: Collection[str], *, bar: int
) -> list[tuple[datetime, str | None, int]]:
    """What is due within a range, in bars of so many seconds: (bar, destination, number).

    Exact, as `before`. Destinations that are not `named` have the name None.
    """
    widths = [width for width in reversed(WIDTHS) if not bar % width]
    parts = [part for group in scope.groups for part in group.within(from_at, until_at, widths)]
    if scope.stored is not None:
        parts.append((_within(scope.stored, from_at, until_at), Count("pk")))
    series = Case(
        When(destination__in=named, then="destination"), default=None, output_field=CharField()
    )
    bars = Counter[tuple[int, str | None]]()
    for number, name, waiting in unite(
        [
            rows.values_list(BarNumber("due_at", bar), series).annotate(number=total)
            for rows, total in parts
        ]
    ):
        bars[number, name] += waiting
    return [
        (datetime.fromtimestamp(number * bar, UTC), name, waiting)
        for (number, name), waiting in bars.items()
        if waiting > 0
    ]


def by_topology(scope: Scope) -> dict[int, tuple[int, int]]:
    """Topology -> how many wait, and how many of these have been due for at least a minute."""
    waiting, overdue = Counter[int](), Counter[int]()
    for pk, _, number, late in scope.totals:
        waiting[pk] += number
        overdue[pk] += late
    overdue.update(_of_today(scope, scope.ids, scope.now))
    delivered, kept = _count_presumed_delivered(scope), _number_by_topology(scope.stored)
    return {
        pk: (
            max(0, waiting[pk] - delivered[pk]) + kept[pk],
            max(0, overdue[pk] - delivered[pk]) + kept[pk],
        )
        for pk in scope.ids
    }


def due_before(scope: Scope, at: datetime, ids: Collection[int]) -> dict[int, int]:
    """Topology -> how many of its waiting messages are due before this time."""
    numbers = {pk: before(scope.only(pk), [at])[0] for pk in ids if pk in scope.delivered_before}
    plain = [pk for pk in ids if pk not in scope.delivered_before]
    if not plain:
        return numbers
    sums = Counter[int](dict.fromkeys(plain, 0))
    sums.update(_by_topology(_within(_rows(scope, plain, DAY), None, floor(at, DAY))))
    sums.update(_of_today(scope, plain, at))
    sums.update(_rows_by_topology(scope, plain, floor(at, MINUTE), at))
    return numbers | sums


def edges(scope: Scope) -> tuple[datetime, datetime] | None:
    """The beginning of the first and the end of the last hour in which something falls due."""
    days = [at for at, number in _days(scope).items() if number > 0]
    hours = []
    if days:
        ends = Q(due_at__lt=min(days) + timedelta(seconds=DAY)) | Q(due_at__gte=max(days))
        rows = _within(still_to_come(scope, HOUR), min(days), None).filter(ends)
        hours = [at for at, number in summed(rows) if number > 0]
    if scope.stored is not None:
        kept = scope.stored.aggregate(first=Min("due_at"), last=Max("due_at"))
        hours += [floor(at, HOUR) for at in kept.values() if at is not None]
    return (min(hours), max(hours) + timedelta(seconds=HOUR)) if hours else None


def _days(scope: Scope) -> Counter[datetime]:
    numbers = Counter[datetime]()
    for group in scope.groups:
        numbers.update(group.days.numbers)
    return numbers


def _number_by_topology(rows: QuerySet[ScheduledMessage] | None) -> Counter[int]:
    if rows is None:
        return Counter()
    numbers = rows.values_list("topology").annotate(number=Count("pk"))
    return Counter({pk: number for pk, number in numbers if pk is not None})


def _rows(scope: Scope, ids: Collection[int], width: int) -> QuerySet[DueCount]:
    rows = DueCount.objects.filter(topology__in=ids, width=width)
    return rows.filter(destination=scope.destination) if scope.destination else rows


def _within(
    rows: QuerySet[Row], from_at: datetime | None, until_at: datetime | None
) -> QuerySet[Row]:
    """Those due from one moment on and before another."""
    rows = rows if from_at is None else rows.filter(due_at__gte=from_at)
    return rows if until_at is None else rows.filter(due_at__lt=until_at)


def still_to_come(scope: Scope, width: int) -> QuerySet[DueCount]:
    """The counts of the scope, without messages that count as delivered."""
    rows = _rows(scope, scope.ids, width)
    if not scope.delivered_before:
        return rows
    still = Q(topology__in=scope.seen)
    for pk, at in scope.delivered_before.items():
        still |= Q(topology=pk, due_at__gte=floor(at, width))
    return rows.filter(still)


def _count_presumed_delivered(scope: Scope) -> Counter[int]:
    """Topology -> how many count as delivered and are due on the day of their time."""
    delivered = Counter[int]()
    for at in set(scope.delivered_before.values()):
        ids = [pk for pk, its_at in scope.delivered_before.items() if its_at == at]
        delivered.update(_of_today(scope, ids, at))
        delivered.update(_rows_by_topology(scope, ids, floor(at, MINUTE), at))
    return delivered


def _of_today(scope: Scope, ids: Collection[int], at: datetime) -> Counter[int]:
    """Topology -> how many are due on the day of this moment, before its minute."""
    day_at, hour_at, minute_at = (floor(at, width) for width in (DAY, HOUR, MINUTE))
    numbers = Counter(_by_topology(_within(_rows(scope, ids, HOUR), day_at, hour_at)))
    numbers.update(_by_topology(_within(_rows(scope, ids, MINUTE), hour_at, minute_at)))
    return numbers


def _rows_by_topology(
    scope: Scope, ids: Collection[int], from_at: datetime, until_at: datetime
) -> dict[int, int]:
    """What waits itself, counted: for the part of a minute."""
    return _number_by_topology(_within(scope.waiting(Q(topology__in=ids)), from_at, until_at))


def _by_topology(rows: QuerySet[DueCount]) -> dict[int, int]:
    return dict(rows.order_by().values_list("topology").annotate(number=Sum("waiting")))
