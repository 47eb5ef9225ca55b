"""Missed targets: where the late deliveries of a topology concentrate, by rules. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeAlias, TypeVar

from django.utils.text import capfirst

from analytics import buckets
from analytics.models import Slo
from analytics.results.figures import Figures
from analytics.results.period import HOUR, local_hours, zone_name
from analytics.results.read import Days, Report
from analytics.results.section import bucket_of, percent
from analytics.results.slo import Attainment, attainment
from analytics.results.summary import Sentence
from topology.content.text import count_text
from topology.delays import format_ms

# Share of the late deliveries, and times the late share of the rest, that make a part a cause.
LEAST_SHARE, LEAST_TIMES = 0.5, 2
# Share of all deliveries above which a part explains nothing.
MOST_OF_ALL = 0.75
# Share of the worst hour's rate of late deliveries with which the hours beside it belong to it.
NEIGHBOUR = 0.5
MOST_MISSED = 3
Key = TypeVar("Key", int, str, datetime)
Late: TypeAlias = tuple[int, int]
"""Late deliveries, and all measured ones."""


@dataclass(frozen=True)
class Part:
    """The late deliveries of the worst hours, destination or requested delay.

    `clause` ends a sentence on them, `query` finds the messages behind them.
    """

    name: str
    label: str
    clause: str
    late: int
    measured: int
    query: str


@dataclass(frozen=True)
class Miss:
    sentence: str
    parts: Sequence[Part]


def explain_miss(report: Report) -> Miss | None:
    """None without a target, or when it was met."""
    slo = report.slo
    if slo is None:
        return None
    found = attainment(report.total.late, slo.percent, slo.within_ms)
    if found.result != "missed":
        return None
    parts = list(_find_parts(report, slo))
    return Miss(_describe(found, slo, parts), parts)


def list_misses(report: Report, miss: Miss | None) -> list[Sentence]:
    """The cause of the selected topology's miss, `miss`; without a selection those that missed
    most.
    """
    if miss:
        return [Sentence("Missed target.", miss.sentence, "slo", report.topology_name)]
    if report.selection.topology:
        return []
    both = [(row, row.attained) for row in report.topologies if row.attained]
    missed = [(row, attained) for row, attained in both if attained.result == "missed"]
    missed.sort(key=lambda pair: -(pair[1].burn_rate or 0))
    found = []
    for row, attained in missed[:MOST_MISSED]:
        name = report.names[row.topology]
        text = f"{name}: {percent(attained.share or 0)}, target {row.target}."
        found.append(Sentence("Missed target.", text, "slo", name))
    return found


def _describe(found: Attainment, slo: Slo, parts: Sequence[Part]) -> str:
    late = found.measured - found.within
    text = (
        f"{count_text(late)} of {count_text(found.measured)} measured deliveries were later than "
        f"{format_ms(slo.within_ms)}."
    )
    causes = [part for part in parts if _is_cause(part, late, found.measured)]
    if not causes:
        whole = "so the cause concerns the whole topology"
        return f"{text} No hours, destination or requested delay stand out, {whole}."
    shares = ("all" if part.late == late else percent(part.late / late) for part in causes)
    clauses = (f"{one} of them {part.clause}" for one, part in zip(shares, causes, strict=True))
    return f"{text} {capfirst(', and '.join(clauses))}."


def _is_cause(part: Part, late: int, measured: int) -> bool:
    if part.late < LEAST_SHARE * late or part.measured > MOST_OF_ALL * measured:
        return False
    # Products, because the rest may have no late delivery.
    rest = late - part.late
    return part.late * (measured - part.measured) >= LEAST_TIMES * rest * part.measured


def _find_parts(report: Report, slo: Slo) -> Iterator[Part]:
    limit = buckets.bucket_of(slo.within_ms)
    yield from _find_hours(report.days, limit)
    if worst := _find_worst(report.destinations):
        name, (late, measured) = worst
        query = bucket_of("measured", late, late_from=limit, destination=name)
        yield Part("Destination", name, f"went to {name}", late, measured, query)
    if worst_delay := _find_worst(_count_by(report.total, "late_by_delay", limit)):
        group, (late, measured) = worst_delay
        label = buckets.DELAY_LABELS[group]
        query = bucket_of("measured", late, late_from=limit, delay=group)
        clause = f"had a requested delay of {label}"
        yield Part("Requested delay", label, clause, late, measured, query)


def _find_worst(counts: Mapping[Key, Late]) -> tuple[Key, Late] | None:
    """The key with the most late deliveries; None where none is late."""
    worst = max(counts, key=lambda key: counts[key][0], default=None)
    return (worst, counts[worst]) if worst is not None and counts[worst][0] else None


def _count_by(figures: Figures, table: str, limit: int) -> dict[int, Late]:
    """Group of a table with a bucket of lateness -> its late and measured deliveries."""
    late, measured = Counter[int](), Counter[int]()
    for (group, bucket), number in figures.items(table):
        measured[int(group)] += number
        late[int(group)] += number * (int(bucket) >= limit)
    return {group: (late[group], measured[group]) for group in measured}


def _find_hours(days: Days, limit: int) -> Iterator[Part]:
    """The worst hours in a row; of several days the worst hour of the day, if that shows more."""
    hours: dict[datetime, Late] = {}
    dates: dict[datetime, date] = {}
    by_label: dict[str, Late] = {}
    for day, figures in days.items():
        begins = local_hours(day)
        for hour, (late, measured) in _count_by(figures, "late_by_hour", limit).items():
            hours[begins[hour]], dates[begins[hour]] = (late, measured), day
            label = f"{begins[hour]:%H:%M}"
            before = by_label.get(label, (0, 0))
            by_label[label] = (before[0] + late, before[1] + measured)
    if not (worst := _find_worst(hours)):
        return
    peak, _ = worst
    first, last = _extend(hours, peak, -HOUR), _extend(hours, peak, HOUR)
    span = [hours[at] for at in hours if first <= at <= last]
    label = _describe_span(first, last + HOUR)
    of_peak = dict.fromkeys(("from", "to"), dates[peak].isoformat())
    query = bucket_of("measured", hours[peak][0], late_from=limit, hour=f"{peak:%H:%M}", **of_peak)
    late, measured = (sum(numbers) for numbers in zip(*span, strict=True))
    yield Part("Time of entry", label, f"entered {label}", late, measured, query)
    is_once = late >= LEAST_SHARE * sum(number for number, _ in hours.values())
    if not is_once and len(days) > 1 and (of_day := _find_worst(by_label)):
        name, (late, measured) = of_day
        label = f"in the hour from {name} ({zone_name()}) on {len(days)} days"
        query = bucket_of("measured", late, late_from=limit, hour=name)
        yield Part("Hour of the day", label, f"entered {label}", late, measured, query)


def _extend(hours: Mapping[datetime, Late], peak: datetime, step: timedelta) -> datetime:
    """The last hour in this direction that is about as bad as the worst one."""
    late, measured = hours[peak]
    least = NEIGHBOUR * late / measured
    at = peak
    while (beside := hours.get(at + step)) and beside[0] >= least * beside[1]:
        at += step
    return at


def _describe_span(begin: datetime, end: datetime) -> str:
    """A span of time in words: "on 12 November between 14:00 and 16:00 (UTC)"."""
    if begin.date() == end.date() or end - begin == HOUR:
        return f"on {begin:%-d %B} between {begin:%H:%M} and {end:%H:%M} ({zone_name()})"
    return f"between {begin:%-d %B, %H:%M} and {end:%-d %B, %H:%M} ({zone_name()})"
