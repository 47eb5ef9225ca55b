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

from django.db.models import Case, Count, Q, QuerySet, Sum, When

from analytics import observation
from analytics.models import DueCount, ScheduledMessage
from analytics.scheduled.due import DAY, HOUR, MINUTE, floor
from analytics.scheduled.sums import BarNumber, Group, Points, summed
from topology.models import Broker, Topology


@dataclass(frozen=True)
class Scope:
    """Whose messages: topologies by id, and one destination of them or, for "", any.

    Of `unseen` topologies nobody sees what leaves, so that only what is not due at `now` waits.
    What of `begun` ones was due before their moment counts as gone: nobody saw until then. What
    was read for one number is kept for the next, so that a scope is for one look.
    """

    seen: tuple[int, ...]
    unseen: tuple[int, ...]
    now: datetime
    destination: str = ""
    begun: tuple[tuple[int, datetime], ...] = ()

    @cached_property
    def gone_before(self) -> Mapping[int, datetime]:
        """Topology -> what of it was due before this counts as gone."""
        return dict.fromkeys(self.unseen, self.now) | dict(self.begun)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return (*self.seen, *self.gone_before)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The topologies by the moment before which what was due counts as gone."""
        together: dict[datetime | None, list[int]] = defaultdict(list)
        for pk in self.ids:
            together[self.gone_before.get(pk)].append(pk)
        return tuple(Group(ids, self.destination, at) for at, ids in together.items())

    @cached_property
    def totals(self) -> Sequence[tuple[int, str, int, int]]:
        """Topology, destination, how many wait, how many of them since before today.

        By whole days.
        """
        is_late = Q(due_at__lt=floor(self.now, DAY))
        sums = _still_to_come(self, DAY).order_by().values_list("topology", "destination")
        late = Sum("waiting", filter=is_late, default=0)
        return list(sums.annotate(number=Sum("waiting"), late=late))

    def only(self, topology_id: int) -> Scope:
        """One topology of it."""
        return replace(
            self,
            seen=tuple(pk for pk in self.seen if pk == topology_id),
            unseen=tuple(pk for pk in self.unseen if pk == topology_id),
            begun=tuple(one for one in self.begun if one[0] == topology_id),
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
    unseen, begun = observation.overlooked(topologies)
    blind = {*unseen, *begun}
    return Scope(
        seen=tuple(one.pk for one in topologies if one.pk not in blind),
        unseen=unseen,
        now=now,
        destination=destination,
        begun=tuple(begun.items()),
    )


def before(scope: Scope, points: Points) -> list[int]:
    """How many wait that are due before each of these moments; None is the end of time."""
    numbers = [group.before(points) for group in scope.groups]
    return [sum(of_point) for of_point in zip(*numbers, strict=True)] or [0] * len(points)


def destinations(
    scope: Scope, from_at: datetime | None, until_at: datetime | None
) -> dict[str, int]:
    """How many wait for whom, about: by whole days or hours; the most first."""
    numbers = Counter[str]()
    if _is_all(scope, from_at, until_at):
        for _, destination, number, _ in scope.totals:
            numbers[destination] += number
    else:
        rows = _within(_still_to_come(scope, HOUR), from_at and floor(from_at, HOUR), until_at)
        sums = rows.order_by().values_list("destination").annotate(number=Sum("waiting"))
        numbers.update(dict(sums))
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
    scope: Scope,
    from_at: datetime,
    until_at: datetime,
    width: int,
    named: Collection[str],
    *,
    bar: int,
) -> list[tuple[datetime, str | None, int]]:
    """The counts of a width that begin within a range: (when, destination, number).

    Summed up in bars of so many seconds. Destinations that are not `named` are told as None.
    """
    within = _within(_still_to_come(scope, width), from_at, until_at).order_by()
    series = Case(When(destination__in=named, then="destination"), default=None)
    sums = within.values_list(BarNumber("due_at", bar), series).annotate(number=Sum("waiting"))
    return [
        (datetime.fromtimestamp(number * bar, UTC), name, waiting)
        for number, name, waiting in sums
        if waiting > 0
    ]


def by_topology(scope: Scope) -> dict[int, tuple[int, int]]:
    """Topology -> how many wait, and how many of these have been due for at least a minute."""
    waiting, overdue = Counter[int](), Counter[int]()
    for pk, _, number, late in scope.totals:
        waiting[pk] += number
        overdue[pk] += late
    overdue.update(_of_today(scope, scope.ids, scope.now))
    gone = _gone_within_the_day(scope)
    return {
        pk: (max(0, waiting[pk] - gone[pk]), max(0, overdue[pk] - gone[pk])) for pk in scope.ids
    }


def due_before(scope: Scope, at: datetime, ids: Collection[int]) -> dict[int, int]:
    """Topology -> how many of it wait that are due before this moment, of those asked for."""
    numbers = {pk: before(scope.only(pk), [at])[0] for pk in ids if pk in scope.gone_before}
    plain = [pk for pk in ids if pk not in scope.gone_before]
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
    if not days:
        return None
    ends = Q(due_at__lt=min(days) + timedelta(seconds=DAY)) | Q(due_at__gte=max(days))
    rows = _within(_still_to_come(scope, HOUR), min(days), None).filter(ends)
    hours = [at for at, number in summed(rows) if number > 0]
    return (min(hours), max(hours) + timedelta(seconds=HOUR)) if hours else None


def _days(scope: Scope) -> Counter[datetime]:
    numbers = Counter[datetime]()
    for group in scope.groups:
        numbers.update(group.days.numbers)
    return numbers


def _rows(scope: Scope, ids: Collection[int], width: int) -> QuerySet[DueCount]:
    rows = DueCount.objects.filter(topology__in=ids, width=width)
    return rows.filter(destination=scope.destination) if scope.destination else rows


def _within(
    rows: QuerySet[DueCount], from_at: datetime | None, until_at: datetime | None
) -> QuerySet[DueCount]:
    if from_at is not None:
        rows = rows.filter(due_at__gte=from_at)
    return rows if until_at is None else rows.filter(due_at__lt=until_at)


def _still_to_come(scope: Scope, width: int) -> QuerySet[DueCount]:
    """The counts of the scope, without those of what counts as gone."""
    rows = _rows(scope, scope.ids, width)
    if not scope.gone_before:
        return rows
    still = Q(topology__in=scope.seen)
    for pk, at in scope.gone_before.items():
        still |= Q(topology=pk, due_at__gte=floor(at, width))
    return rows.filter(still)


def _gone_within_the_day(scope: Scope) -> Counter[int]:
    """Topology -> how many count as gone and are due on the day of their moment."""
    gone = Counter[int]()
    for at in set(scope.gone_before.values()):
        ids = [pk for pk, its_at in scope.gone_before.items() if its_at == at]
        gone.update(_of_today(scope, ids, at))
        gone.update(_rows_by_topology(scope, ids, floor(at, MINUTE), at))
    return gone


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
    rows = ScheduledMessage.objects.filter(
        topology__in=ids, left_at=None, entered_at__isnull=False
    ).filter(due_at__gte=from_at, due_at__lt=until_at)
    if scope.destination:
        rows = rows.filter(destination=scope.destination)
    numbers = rows.order_by().values_list("topology").annotate(number=Count("pk"))
    return {pk: number for pk, number in numbers if pk is not None}


def _by_topology(rows: QuerySet[DueCount]) -> dict[int, int]:
    return dict(rows.order_by().values_list("topology").annotate(number=Sum("waiting")))
