"""Reads the figures of a range: a row per day and broker, and bounded lists beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property

from django.db.models import Count, Max, QuerySet, Sum

from analytics.buckets import bucket_of
from analytics.models import DayFigures, Slo, UnexplainedMessage, UnusualChange
from analytics.results.annotations import MOST_ANNOTATIONS, Mark, find_first_versions, read_marks
from analytics.results.figures import ENTERED, FATES, UNEXPLAINED, Figures, count_late
from analytics.results.period import Period, whole_hours
from analytics.results.slo import Attainment
from analytics.results.unusual import BASELINE_DAYS
from topology.content.text import count_text
from topology.definitions import is_own_queue
from topology.models import Broker, Topology
from topology.patterns.pattern import ParamsError

MOST_TOPOLOGIES = 25
MOST_UNEXPLAINED = 100
MOST_UNUSUAL = 3
# Topologies of each kind of problem that are read by day, for the sentences of the summary.
SUSPECTS = 1
BUDGET_DAYS = 28
SUMS = ("measured", "messages", "retried", "exhausted", "entered", "unexplained")
SORTS = ("worst_p99_ms", "retried", "exhausted", "unexplained")
Days = Mapping[date, Figures]


@dataclass(frozen=True)
class Selection:
    """What a report is about; "" is all."""

    topology: str = ""
    pattern: str = ""
    destination: str = ""

    @property
    def is_filtered(self) -> bool:
        return self != Selection()

    @property
    def has_retries(self) -> bool:
        """Retries are counted by topology, and of no destination."""
        return not self.destination


@dataclass(frozen=True)
class TopologyRow:
    """Sums of one topology; `attained` is None without a target."""

    broker: str
    topology: str
    worst_p99_ms: float | None
    measured: int
    messages: int
    retried: int
    exhausted: int
    entered: int
    unexplained: int
    target: str | None = None
    attained: Attainment | None = None


class TopologyNames(dict[str, str]):
    """Slug -> the name that people read; the slug itself where no other name is unique."""

    def __missing__(self, slug: str) -> str:
        return slug


@dataclass(frozen=True)
class Report:
    """The figures of a range for some brokers."""

    period: Period
    selection: Selection
    days: Days
    previous: Days
    """Those of the range before."""
    topologies: Sequence[TopologyRow]
    suspects: Mapping[str, Days]
    """The topologies that a summary looks at, by day."""
    unexplained: Sequence[UnexplainedMessage]
    slo: Slo | None = None
    """The target of the selected topology."""
    destinations: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of the selected topology with a target, by destination: late and measured deliveries."""
    budget: Figures = field(default_factory=Figures)
    """Of the selected topology in the 28 days up to the last one."""
    retried: Sequence[TopologyRow] = ()
    """The topologies with retries, the highest rate first."""
    queues: TopologyNames = field(default_factory=TopologyNames)
    """By slug the work queue, or the name of a topology that has not one."""
    names: TopologyNames = field(default_factory=TopologyNames)
    """What people read for the slug of a topology, and type into the filter."""
    annotations: Sequence[Mark] = ()
    """Deploys, changes, replays and outages of the range, the earliest first."""
    unusual: Sequence[UnusualChange] = ()
    """The three most unusual things of the range."""
    days_recorded: int = 0
    """Of the 28 days before the last one."""

    @cached_property
    def total(self) -> Figures:
        return merged(self.days.values())

    @cached_property
    def unrecorded(self) -> frozenset[datetime]:
        """The hours (UTC) of the range that an outage covers: a zero of them is unknown."""
        begin = datetime.combine(self.period.first, time(), UTC)
        end = datetime.combine(self.period.last, time(), UTC) + timedelta(days=1)
        return frozenset(
            hour
            for one in self.annotations
            if one.kind == "outage" and one.until_at
            for hour in whole_hours(max(one.at, begin), min(one.until_at, end))
        )

    @property
    def topology_name(self) -> str:
        return self.names[self.selection.topology]

    @property
    def ledger(self) -> list[tuple[str, str]]:
        """Each fate and its number, “about” so many where some may be entries recorded twice."""
        counts = [("scheduled", self.total.fate(ENTERED))]
        counts += [(fate, self.total.fate(fate)) for fate in FATES]
        unsure = {UNEXPLAINED} if self.total.possible_repeats else set()
        return [
            (fate.capitalize(), f"{'about ' if fate in unsure else ''}{count_text(number)}")
            for fate, number in counts
        ]

    @cached_property
    def generated_days(self) -> list[date]:
        """The days whose events the demo generated."""
        return [day for day, figures in self.days.items() if figures.total("generated")]

    @property
    def is_empty(self) -> bool:
        return not self.days


@dataclass(frozen=True)
class Choices:
    """What the filters offer: the names that the newest day of a range has."""

    topologies: Sequence[str] = ()
    patterns: Sequence[str] = ()
    destinations: Sequence[str] = ()


def merged(many: Iterable[Figures]) -> Figures:
    figures = Figures()
    for one in many:
        figures.add(one)
    return figures


def report(
    period: Period,
    brokers: Iterable[Broker],
    selection: Selection | None = None,
    audited: Iterable[Broker] = (),
) -> Report:
    """What the nightly runs left of these days for these brokers; `audited` as of read_marks."""
    selection = selection or Selection()
    brokers = list(brokers)
    slugs = [broker.slug for broker in brokers]
    before = period.before
    budget_first = period.last - timedelta(days=BUDGET_DAYS - 1)
    of_brokers = Topology.objects.filter(broker__slug__in=slugs).order_by()
    columns = ("slug", "name", "kind", "params", "slo__percent", "slo__within_ms")
    known = list(of_brokers.values_list(*columns))
    names = _find_unique({slug: name for slug, name, *_ in known})
    targets = {
        slug: Slo(percent=share, within_ms=within_ms)
        for slug, *_, share, within_ms in known
        if share is not None
    }
    if selection.topology and selection.pattern:
        # A topology has one pattern.
        of_pattern = of_brokers.filter(slug=selection.topology, kind=selection.pattern)
        slugs = slugs if of_pattern.exists() else []
    target = targets.get(selection.topology)
    # A version may pause for weeks; the budget is of these days too.
    first = min(before.first, period.first - timedelta(days=BASELINE_DAYS))
    rows = _of(slugs, first, period.last).filter(
        topology=selection.topology,
        pattern="" if selection.topology else selection.pattern,
        destination=selection.destination,
    )
    summed: defaultdict[date, Figures] = defaultdict(Figures)
    for day, stored in rows.values_list("day", "figures"):
        summed[day].add_stored(stored)
    by_day = dict(sorted(summed.items()))
    current = {day: figures for day, figures in by_day.items() if day >= period.first}
    previous = {day: by_day[day] for day in by_day if before.first <= day < period.first}
    budget = merged(figures for day, figures in by_day.items() if target and day >= budget_first)
    topologies, retried, suspects = _topologies(slugs, period, selection, targets)
    unexplained = UnexplainedMessage.objects.filter(
        broker__in=slugs, day__range=(period.first, period.last)
    )
    if selection.topology:
        unexplained = unexplained.filter(topology=selection.topology)
    listed = list(unexplained.order_by("-due_at", "pk")[:MOST_UNEXPLAINED])
    for row in listed:
        # Only read, and never saved.
        row.topology = names[row.topology]
    marks = read_marks(
        datetime.combine(period.first, time(), UTC),
        datetime.combine(period.last, time(), UTC) + timedelta(days=1),
        brokers,
        selection.topology,
        audited,
    )
    marks += find_first_versions(by_day, period.first, marks)
    return Report(
        period=period,
        selection=selection,
        days=current,
        previous=previous,
        topologies=topologies,
        retried=retried,
        queues=_name_queues(
            [
                Topology(slug=slug, kind=kind, params=params)
                for slug, _, kind, params, *_ in known
                if slug in {row.topology for row in retried}
            ],
            names,
        ),
        suspects={names[slug]: days for slug, days in suspects.items()},
        unexplained=listed,
        slo=target,
        destinations=_count_late_by_destination(slugs, period, selection, target),
        budget=budget,
        names=names,
        annotations=sorted(marks, key=lambda one: one.at)[-MOST_ANNOTATIONS:],
        unusual=_read_unusual(slugs, period, selection),
        days_recorded=_of(slugs, period.last - timedelta(days=BASELINE_DAYS), period.last)
        .filter(topology=selection.topology, pattern="", destination="", day__lt=period.last)
        .aggregate(days=Count("day", distinct=True))["days"],
    )


def _read_unusual(
    slugs: Sequence[str], period: Period, selection: Selection
) -> Sequence[UnusualChange]:
    """Unusual changes of the selected topology or pattern; for a destination nothing is
    compared.
    """
    rows = UnusualChange.objects.filter(
        broker__in=slugs, day__range=(period.first, period.last)
    ).order_by("-score", "pk")
    if selection.topology:
        rows = rows.filter(topology=selection.topology)
    elif selection.pattern:
        of_pattern = Topology.objects.filter(kind=selection.pattern).values("slug")
        rows = rows.filter(topology__in=of_pattern)
    return () if selection.destination else list(rows[:MOST_UNUSUAL])


def budgets_of(topologies: Sequence[Topology], last: date) -> Mapping[str, Figures]:
    """Slug of a topology -> its figures in the 28 days up to this day."""
    slugs = sorted({one.broker.slug for one in topologies})
    rows = _of(slugs, last - timedelta(days=BUDGET_DAYS - 1), last).filter(
        topology__in=[one.slug for one in topologies], pattern="", destination=""
    )
    found: defaultdict[str, Figures] = defaultdict(Figures)
    for slug, stored in rows.values_list("topology", "figures"):
        found[slug].add_stored(stored)
    return found


def choices(period: Period, brokers: Iterable[Broker], known: TopologyNames) -> Choices:
    """The filters' names, sorted, without queues of Delayboard; `known` as Report.names."""
    rows = _of([broker.slug for broker in brokers], period.first, period.last)
    newest = rows.order_by("-day").values_list("day", flat=True).first()
    if newest is None:
        return Choices()
    names = rows.filter(day=newest).values_list("topology", "pattern", "destination")
    topologies, patterns, destinations = (
        {name for name in column if name and not is_own_queue(name)}
        for column in zip(*names, strict=True)
    )
    shown = sorted(known[slug] for slug in topologies)
    return Choices(shown, sorted(patterns), sorted(destinations))


def last_day() -> date:
    """Yesterday (UTC): the day of today is not over."""
    return datetime.now(UTC).date() - timedelta(days=1)


def _of(slugs: Sequence[str], first: date, last: date) -> QuerySet[DayFigures]:
    return DayFigures.objects.filter(broker__in=slugs, day__range=(first, last)).order_by()


def _topologies(
    slugs: Sequence[str], period: Period, selection: Selection, targets: Mapping[str, Slo]
) -> tuple[list[TopologyRow], list[TopologyRow], Mapping[str, Days]]:
    """The topologies with the worst p99, those with the highest retry rate, and the suspects by
    day.
    """
    days = _of(slugs, period.first, period.last)
    rows = days.filter(pattern="", destination=selection.destination).exclude(topology="")
    if selection.topology:
        rows = rows.filter(topology=selection.topology)
    elif selection.pattern:
        of_pattern = Topology.objects.filter(kind=selection.pattern).values_list("slug", flat=True)
        rows = rows.filter(topology__in=list(of_pattern))
    sums = {name: Sum(name) for name in SUMS}
    columns = ("broker", "topology", "worst", *SUMS)
    grouped = rows.values("broker", "topology").annotate(worst=Max("p99_ms"), **sums)
    found = [TopologyRow(*row) for row in grouped.values_list(*columns)]
    found.sort(key=lambda row: (-(row.worst_p99_ms or 0.0), row.topology))
    suspected = {
        row.topology
        for sort in SORTS
        for row in sorted(found, key=lambda row: -(getattr(row, sort) or 0))[:SUSPECTS]
        if getattr(row, sort)
    }
    by_topology: dict[str, dict[date, Figures]] = {name: {} for name in sorted(suspected)}
    listed = found[:MOST_TOPOLOGIES]
    with_target = targets.keys() & {row.topology for row in listed}
    limits = {name: bucket_of(targets[name].within_ms) for name in with_target}
    measured, within = Counter[str](), Counter[str]()
    stored_days = rows.filter(topology__in=suspected | limits.keys()).order_by("day")
    for name, day, stored in stored_days.values_list("topology", "day", "figures"):
        if name in by_topology:
            by_topology[name].setdefault(day, Figures()).add_stored(stored)
        if name in limits:
            all_of_day, in_time = count_late(stored, limits[name])
            measured[name] += all_of_day
            within[name] += in_time
    with_targets = []
    for row in listed:
        if target := targets.get(row.topology):
            counts = measured[row.topology], within[row.topology]
            attained = Attainment(*counts, 1 - target.percent / 100)
            row = replace(row, target=str(target), attained=attained)
        with_targets.append(row)
    retried = sorted((row for row in found if row.retried), key=_retry_rate, reverse=True)
    return with_targets, retried[:MOST_TOPOLOGIES], by_topology


def _retry_rate(row: TopologyRow) -> float:
    return row.retried / row.messages if row.messages else 1.0


def _name_queues(topologies: Iterable[Topology], names: TopologyNames) -> TopologyNames:
    """What the messages of each topology are retried in; a queue of several by both names."""
    found = {}
    for topology in topologies:
        with suppress(ParamsError):
            queues = topology.pattern.targets(topology.parsed)
            if len(queues) == 1:
                found[topology.slug] = queues[0]
    uses = Counter(found.values())
    return TopologyNames(
        names
        | {
            slug: queue if uses[queue] == 1 else f"{queue} ({names[slug]})"
            for slug, queue in found.items()
        }
    )


def _count_late_by_destination(
    slugs: Sequence[str], period: Period, selection: Selection, target: Slo | None
) -> dict[str, tuple[int, int]]:
    """Empty where the report is about one destination already."""
    if target is None or selection.destination:
        return {}
    limit = bucket_of(target.within_ms)
    rows = _of(slugs, period.first, period.last).filter(topology=selection.topology, pattern="")
    found: dict[str, tuple[int, int]] = {}
    for name, stored in rows.exclude(destination="").values_list("destination", "figures"):
        measured, within = count_late(stored, limit)
        late_before, before = found.get(name, (0, 0))
        found[name] = (late_before + measured - within, before + measured)
    return found


def name_topologies(slugs: Sequence[str]) -> TopologyNames:
    """What people read for the slugs of these brokers' topologies, as `Report.names`."""
    rows = Topology.objects.filter(broker__slug__in=slugs).order_by()
    return _find_unique(dict(rows.values_list("slug", "name")))


def _find_unique(names: Mapping[str, str]) -> TopologyNames:
    """Slug -> name, for names that one topology has and that are no slug of another."""
    uses = Counter(names.values())
    return TopologyNames(
        (slug, name)
        for slug, name in names.items()
        if uses[name] == 1 and (name == slug or name not in names)
    )
