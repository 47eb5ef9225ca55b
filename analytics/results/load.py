"""Loads the results of a day into the database, in one transaction, and deletes them.

A row of DayFigures holds all figures of one cut: everything of a broker, a topology, a pattern, a
destination. A page adds up days of one cut, so that it reads a row per day and broker however many
topologies there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import NamedTuple, TypeVar

from django.db import transaction

from analytics import buckets
from analytics.launch import Result, Row
from analytics.models import DayFigures, UnexplainedMessage, UnusualChange
from analytics.models.results import Unusual
from analytics.observation import unobserved
from analytics.results.figures import (
    DEAD_LETTER_GROUPS,
    DELIVERED,
    ENTERED,
    EXHAUSTED,
    GROUP_MESSAGES,
    GROUPS,
    LEFT,
    RECOVERED,
    UNEXPLAINED,
    UNOBSERVED,
    WAITING,
    Figures,
    Key,
)
from analytics.results.unusual import find_unusual
from topology.models import Topology

MODELS = (DayFigures, UnexplainedMessage, UnusualChange)
# Destinations kept of each broker, those with the most messages: names can come from messages.
MOST_DESTINATIONS = 100
# Groups kept of each broker and kind, those with the most messages.
MOST_GROUPS = 10
MOST_ORIGINS = 100
RELEASE = ("publisher", "version")
# Table of messages -> the columns that identify a row.
KEYS = {
    **{"attempts": ("attempt",), "outcomes": ("first", "last", "outcome")},
    **{"recoveries": ("bucket",), "causes": ("queue", "reason", "exception_type", "routing_key")},
}
Place = TypeVar("Place")
Name = TypeVar("Name")


class Cut(NamedTuple):
    """What a row is about; "" is all."""

    broker: str
    topology: str = ""
    pattern: str = ""
    destination: str = ""


def replace_day(
    day: date,
    result: Result,
    *,
    observed: Collection[str] = (),
    is_generated: bool = False,
) -> None:
    """Replace the rows of the day with the result, in one transaction.

    `observed` are the topologies of which each message that was given up is in the log.
    Sums that include figures of generated events are marked.
    """
    patterns = dict(Topology.objects.values_list("slug", "kind"))
    began_at = datetime.combine(day, time(), UTC)
    # Generated events have each delivery that there was.
    blind = [] if is_generated else unobserved(since=began_at)
    not_observed = {topology.slug for topology in blind}
    if is_generated:
        observed = {row["topology"] for row in result.tables["outcomes"]}
    found = figures_by_cut(result.tables, patterns, not_observed, observed)
    if is_generated:
        for figures in found.values():
            figures.counts["generated"][()] = 1
    whole = {
        (cut.broker, cut.topology): figures
        for cut, figures in found.items()
        if not (cut.pattern or cut.destination)
    }
    # It takes long: nobody else could write meanwhile.
    unusual, compared = find_unusual(day, whole)
    for broker, topology, kind in compared:
        cuts = [Cut(broker, topology), Cut(broker, pattern=patterns.get(topology, ""))]
        # A broker has dead letters of its own to compare.
        is_other = bool(topology) and kind == Unusual.DEAD_LETTERS
        for cut in (*cuts, Cut(broker)):
            if cut in found and not (is_other and cut == Cut(broker)):
                found[cut].counts["compared"][(kind.value,)] = 1
    with transaction.atomic():
        forget_day(day)
        rows = (_make_row(day, cut, figures) for cut, figures in found.items())
        DayFigures.objects.bulk_create(rows, batch_size=100)
        unexplained = []
        for row in result.tables["unexplained"]:
            if row["topology"] not in not_observed:
                one = UnexplainedMessage(day=day, broker=row["broker"], topology=place(row))
                one.message, one.due_at = row["key"] or "", datetime.fromisoformat(row["due_at"])
                unexplained.append(one)
        UnexplainedMessage.objects.bulk_create(unexplained, batch_size=500)
        UnusualChange.objects.bulk_create(unusual, batch_size=500)


def forget_day(day: date) -> int:
    """Delete the day's rows; how many there were."""
    with transaction.atomic():
        deleted = [model._default_manager.filter(day=day).delete() for model in MODELS]
    return sum(number for number, _ in deleted)


def has_day(day: date) -> bool:
    return any(model._default_manager.filter(day=day).exists() for model in MODELS)


def place(row: Row) -> str:
    """The topology, or the queue that is known from a trace alone."""
    topology: str = row["topology"] or f"queue {row.get('queue', '')}"
    return topology


def figures_by_cut(
    tables: Mapping[str, Sequence[Row]],
    patterns: Mapping[str, str],
    not_observed: Iterable[str],
    recovering: Iterable[str] = (),
) -> dict[Cut, Figures]:
    """The results of a day -> figures of every cut that has any.

    Topologies that are `not_observed` have no exits to miss. What left the retries of those that
    are `recovering` and was not given up has recovered.
    """
    not_observed, recovering = frozenset(not_observed), frozenset(recovering)
    by_hour = (
        (row["broker"], row["destination"], row["entered"])
        for row in tables["hours"]
        if row["destination"]
    )
    common = _find_largest(by_hour, MOST_DESTINATIONS)
    found: defaultdict[Cut, Figures] = defaultdict(Figures)

    def count(row: Row, table: str, key: Key, number: int) -> None:
        if number:
            for cut in _cuts(row, patterns, common):
                found[cut].counts[table][key] += number

    for row in tables["histogram"]:
        count(row, "late_by_delay", (row["delay_bucket"], row["bucket"]), row["messages"])
        count(row, "late_by_hour", (_hour(row), row["bucket"]), row["messages"])
        count(row, "early_by_hour", (_hour(row), buckets.ON_TIME), row["messages"])
    for row in tables["early"]:
        count(row, "early_by_hour", (_hour(row), row["bucket"]), row["messages"])
        count(row, "early_by_hour", (_hour(row), buckets.ON_TIME), -row["messages"])
    for row in tables["hours"]:
        for fate in (ENTERED, DELIVERED, WAITING):
            count(row, "ledger", (fate,), row[fate])
    for row in tables["losses"]:
        fate = row["fate"]
        is_not_observed = fate == UNEXPLAINED and row["topology"] in not_observed
        count(row, "ledger", (UNOBSERVED if is_not_observed else fate,), row["messages"])
    for row in tables["retries"]:
        for name in ("messages", "retried"):
            count(row, name, (), row[name])
    for table, names in KEYS.items():
        for row in tables[table]:
            key = tuple("" if row[name] is None else row[name] for name in names)
            if table == "outcomes" and row["outcome"] == LEFT and row["topology"] in recovering:
                key = (*key[:-1], RECOVERED)
            count(row, table, key, row["messages"])
    for row in tables["failures"]:
        count(row, "failures_by_hour", (_hour(row),), row["messages"])
        count(row, "first_failures_by_hour", (_hour(row),), row["first_time"])
    for row in tables["probes"]:
        if row["bucket"] is not None:
            count(row, "probes_late", (row["delay_bucket"], row["bucket"]), row["messages"])
        else:
            fate = "unmeasured" if row["has_left"] else "missing"
            count(row, f"probes_{fate}", (row["delay_bucket"],), row["messages"])
    _count_groups(tables, recovering, count)
    # Dead letters belong to brokers.
    dead_letters = [
        (row, (row["reason"], row["origin"], row["exception_type"]))
        for row in tables["dead_letters"]
    ]
    by_origin = ((row["broker"], origin, row["messages"]) for row, origin in dead_letters)
    origins = _find_largest(by_origin, MOST_ORIGINS)
    for row, origin in dead_letters:
        own = found[Cut(row["broker"])].counts
        own["dead_letters"][row["kind"], row["reason"]] += row["messages"]
        own["dead_letters_by_hour"][row["kind"], _hour(row)] += row["messages"]
        if (row["broker"], origin) in origins:
            own[DEAD_LETTER_GROUPS][row["kind"], *origin] += row["messages"]
    for figures in found.values():
        figures.counts["counted"]["first_failures_by_hour",] = 1
    return dict(found)


def _find_largest(
    counts: Iterable[tuple[Place, Name, int]], most: int
) -> frozenset[tuple[Place, Name]]:
    """The `most` names of each place with the most messages: names can come from messages."""
    sizes: defaultdict[Place, Counter[Name]] = defaultdict(Counter)
    for place, name, number in counts:
        sizes[place][name] += number
    return frozenset(
        (place, name) for place, of in sizes.items() for name, _ in of.most_common(most)
    )


def _count_groups(
    tables: Mapping[str, Sequence[Row]],
    recovering: frozenset[str],
    count: Callable[[Row, str, Key, int], None],
) -> None:
    """Count the largest groups of each broker."""
    groups = [(row, row["dimension"], row["value"]) for row in tables["groups"]]
    releases = [(row, one, row[one]) for row in tables["releases"] for one in RELEASE if row[one]]
    largest = _find_largest(
        (((row["broker"], one), value, row["messages"]) for row, one, value in groups + releases),
        MOST_GROUPS,
    )
    for row, dimension, value in groups:
        if ((row["broker"], dimension), value) in largest:
            is_recovered = row["outcome"] == LEFT and row["topology"] in recovering
            outcome = RECOVERED if is_recovered else row["outcome"]
            trail = (row["first"], row["last"], outcome)
            count(row, GROUPS, (dimension, value, *trail), row["messages"])
    for row, dimension, value in releases:
        if ((row["broker"], dimension), value) in largest:
            for what in ("messages", "retried"):
                count(row, GROUP_MESSAGES, (dimension, value, what), row[what])


def _cuts(
    row: Row, patterns: Mapping[str, str], common: frozenset[tuple[str, str]]
) -> Iterator[Cut]:
    broker, topology = row["broker"], place(row)
    pattern = patterns.get(topology, "")
    destination = row.get("destination") or ""
    yield Cut(broker)
    yield Cut(broker, topology=topology)
    if pattern:
        yield Cut(broker, pattern=pattern)
    if (broker, destination) in common:
        yield Cut(broker, destination=destination)
        yield Cut(broker, topology=topology, destination=destination)
        if pattern:
            yield Cut(broker, pattern=pattern, destination=destination)


def _make_row(day: date, cut: Cut, figures: Figures) -> DayFigures:
    return DayFigures(
        day=day,
        **cut._asdict(),
        **{name: getattr(figures, name) for name in ("measured", "messages", "retried")},
        p99_ms=buckets.percentile(figures.late, 0.99),
        exhausted=figures.outcome(EXHAUSTED),
        entered=figures.fate(ENTERED),
        unexplained=figures.fate(UNEXPLAINED),
        figures=figures.stored(),
    )


def _hour(row: Row) -> int:
    return datetime.fromisoformat(row["hour_at"]).hour
