"""The tables of a report about lateness."""

from __future__ import annotations

from analytics import buckets
from analytics.results.read import Report
from analytics.results.sections.search import bucket_of
from analytics.results.sections.section import DAY, Column, Row, Section, ratio

PERCENTILES = (
    *(Column("p50", "ms"), Column("p90", "ms")),
    *(Column("p95", "ms"), Column("p99", "ms")),
)
LATENESS = (*PERCENTILES, Column("Max", "ms"), Column("Early", "share"))


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
