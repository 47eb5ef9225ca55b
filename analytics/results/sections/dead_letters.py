"""The tables of a report about dead letters."""

from __future__ import annotations

from collections import Counter

from analytics.results.figures import DEAD_LETTER_GROUPS
from analytics.results.read import Report
from analytics.results.sections.retries import MOST_CAUSES
from analytics.results.sections.search import search_parked
from analytics.results.sections.section import DAY, Column, Row, Section

HANDLED = ("arrived", "parked", "replayed", "discarded")
HANDLED_COLUMNS = tuple(Column(kind.capitalize(), "count") for kind in HANDLED)


def make_by_reason(report: Report) -> Section:
    found = [
        (day, reason, figures.counts["dead_letters"])
        for day, figures in report.days.items()
        for reason in sorted({str(reason) for _, reason in figures.counts["dead_letters"]})
    ]
    rows: list[Row] = [
        [day.isoformat(), reason or "unknown", *(counts[kind, reason] for kind in HANDLED)]
        for day, reason, counts in found
    ]
    columns = (Column(DAY), Column("Reason"), *HANDLED_COLUMNS)
    searches = [
        search_parked(report, counts["parked", reason], (day, day), reason=reason)
        for day, reason, counts in found
    ]
    title = "Dead letters by reason"
    return Section("dead_letters", title, columns, rows, "No dead letter arrived.", searches)


def make_by_origin(report: Report) -> Section:
    counts = report.total.counts[DEAD_LETTER_GROUPS]
    sizes: Counter[tuple[str, ...]] = Counter()
    for (_, *origin), number in counts.items():
        sizes[tuple(map(str, origin))] += number
    origins = [origin for origin, _ in sizes.most_common(MOST_CAUSES)]
    rows: list[Row] = [
        [origin or "unknown", reason or "unknown", exception]
        + [counts[kind, reason, origin, exception] for kind in HANDLED]
        for reason, origin, exception in origins
    ]
    columns = (Column("Died in"), Column("Reason"), Column("Exception"), *HANDLED_COLUMNS)
    searches = [
        search_parked(
            report,
            counts["parked", reason, origin, exception],
            (report.period.first, report.period.last),
            died=origin,
            reason=reason,
            exception=exception,
        )
        for reason, origin, exception in origins
    ]
    title = "Dead letters by origin"
    return Section("handled", title, columns, rows, "No dead letter arrived.", searches)
