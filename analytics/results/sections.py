"""The tables of a report: what its charts draw, its page lists and its CSV files hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from analytics import buckets
from analytics.results import retry_sections as retries
from analytics.results.figures import DEAD_LETTER_GROUPS, ENTERED, FATES
from analytics.results.read import Report
from analytics.results.section import (
    DAY,
    TOTAL,
    Column,
    Row,
    Section,
    bucket_of,
    ratio,
    search_parked,
)
from analytics.results.slo import attainment

PERCENTILES = tuple(Column(name, "ms") for name in ("p50", "p90", "p95", "p99"))
LATENESS = (*PERCENTILES, Column("Max", "ms"), Column("Early", "share"))
MOST_ORIGINS = 20
HANDLED = ("arrived", "parked", "replayed", "discarded")
HANDLED_COLUMNS = tuple(Column(kind.capitalize(), "count") for kind in HANDLED)


def sections(report: Report) -> dict[str, Section]:
    """Every table by its key, in the order of the page."""
    made = [make(report) for make in MAKERS]
    return {section.key: section for section in made}


def describe_lateness(counts: buckets.Counts) -> list[float | None]:
    """The values of LATENESS; None of no delivery."""
    shares = (0.5, 0.9, 0.95, 0.99, 1.0)
    early = ratio(counts.get(buckets.EARLY, 0), sum(counts.values()))
    return [*(buckets.percentile(counts, share) for share in shares), early]


def make_lateness_by_day(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.measured, *describe_lateness(figures.late)]
        for day, figures in report.days.items()
        if figures.measured
    ]
    columns = (Column(DAY), Column("Measured", "count"), *LATENESS)
    empty = "No delivery was measured."
    if report.total.total("probes_late"):
        empty += " Only probes were measured, see “Lateness of probes”."
    return Section("lateness", "Lateness by day", columns, rows, empty)


def make_lateness_by_delay(report: Report) -> Section:
    rows: list[Row] = []
    found = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("late_by_delay", group)
        if counts:
            number = sum(counts.values())
            found.append(bucket_of("measured", number, delay=group))
            rows.append([label, number, *describe_lateness(counts)])
    columns = (Column("Requested delay"), Column("Measured", "count"), *LATENESS)
    title, empty = "Lateness by requested delay", "No delivery was measured."
    return Section("delays", title, columns, rows, empty, buckets=found)


def make_lateness_of_probes(report: Report) -> Section:
    missing, unmeasured = (report.total.by(f"probes_{fate}") for fate in ("missing", "unmeasured"))
    rows: list[Row] = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("probes_late", group)
        if counts or missing[group] or unmeasured[group]:
            number = sum(counts.values())
            late = describe_lateness(counts)
            rows.append([label, number, *late, unmeasured[group], missing[group]])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count"), *LATENESS),
        *(Column("Not measured", "count"), Column("Not arrived", "count")),
    )
    return Section("probes", "Lateness of probes", columns, rows, "No probe was sent.")


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
    for (_, *place), size in counts.items():
        sizes[tuple(map(str, place))] += size
    origins = [origin for origin, _ in sizes.most_common(MOST_ORIGINS)]
    rows: list[Row] = [
        [origin or "unknown", reason or "unknown", exception]
        + [counts[kind, reason, origin, exception] for kind in HANDLED]
        for reason, origin, exception in origins
    ]
    columns = (Column("Died in"), Column("Reason"), Column("Exception"), *HANDLED_COLUMNS)
    days = report.period.first, report.period.last
    searches = []
    for reason, origin, exception in origins:
        named = {"died": origin, "reason": reason, "exception": exception}
        number = counts["parked", reason, origin, exception]
        searches.append(search_parked(report, number, days, **named))
    title = "Dead letters by origin"
    return Section("handled", title, columns, rows, "No dead letter arrived.", searches)


def make_ledger(report: Report) -> Section:
    of_days = [(day.isoformat(), figures) for day, figures in report.days.items()]
    rows: list[Row] = [
        [label, figures.fate(ENTERED), *map(figures.fate, FATES)]
        for label, figures in [*of_days, (TOTAL, report.total)]
        if figures.fate(ENTERED)
    ]
    fates = (Column(fate.capitalize(), "count") for fate in FATES)
    columns = (Column(DAY), Column("Scheduled", "count"), *fates)
    return Section("ledger", "Loss ledger", columns, rows, "No message was scheduled.")


def make_topologies(report: Report) -> Section:
    # Nobody counts these for one destination.
    are_known = report.selection.has_retries
    rows: list[Row] = []
    for row in report.topologies:
        attained = (row.attained.share, row.attained.result) if row.attained else (None, None)
        retries_ = (row.messages, ratio(row.retried, row.messages), row.exhausted)
        named = (report.names[row.topology], row.measured, row.worst_p99_ms, row.target)
        known = retries_ if are_known else (None, None, None)
        rows.append([*named, *attained, *known, row.unexplained])
    columns = (
        *(Column("Topology"), Column("Measured", "count"), Column("Highest daily p99", "ms")),
        *(Column("Target"), Column("Attainment", "share"), Column("Result")),
        *(Column("Messages", "count"), Column("First-time failures", "share")),
        *(Column("Exhausted", "count"), Column("Unexplained", "count")),
    )
    return Section("topologies", "Topologies", columns, rows, "No topology has figures.")


def make_slo(report: Report) -> Section:
    rows: list[Row] = []
    if slo := report.slo:
        for day, figures in report.days.items():
            found = attainment(figures.late, slo.percent, slo.within_ms)
            if found.measured:
                counts = (found.measured, found.measured - found.within)
                target = (str(slo), report.topology_name)
                rows.append([day.isoformat(), *counts, found.share, found.burn_rate, *target])
    columns = (
        *(Column(DAY), Column("Measured", "count"), Column("Late", "count")),
        *(Column("Attainment", "share"), Column("Burn rate", "number")),
        *(Column("Target"), Column("Topology")),
    )
    return Section("slo", "Service level objective", columns, rows, "No delivery was measured.")


# In the order of the page.
MAKERS: tuple[Callable[[Report], Section], ...] = (
    *(make_lateness_by_day, make_lateness_by_delay, make_lateness_of_probes),
    *(retries.make_survival, make_by_reason, retries.make_recovery, retries.make_groups),
    *(retries.make_causes, make_by_origin, make_ledger, make_topologies, make_slo),
)
