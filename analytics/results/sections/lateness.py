"""The tables of a report about lateness."""

from __future__ import annotations

from analytics import buckets
from analytics.models.results import Reason
from analytics.results.hours import (
    late_by_local_hour,
    zone_name,
)
from analytics.results.read import Report
from analytics.results.sections.section import DAY, Column, Row, Section, ratio
from topology.delays import format_delay


def compute_percentiles(counts: buckets.Counts) -> list[float | None]:
    return [buckets.percentile(counts, share) for share in (0.5, 0.9, 0.95, 0.99)]


PERCENTILES = (
    *(Column("p50", "ms"), Column("p90", "ms")),
    *(Column("p95", "ms"), Column("p99", "ms")),
)


def make_lateness_by_day(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.measured, *compute_percentiles(figures.late)]
        for day, figures in report.days.items()
        if figures.measured
    ]
    columns = (Column(DAY), Column("Measured", "count"), *PERCENTILES)
    empty = "No delivery was measured."
    if report.total.total("probes_late"):
        empty += " Only probes were measured, see “Lateness of probes”."
    return Section("lateness", "Lateness by day", columns, rows, empty)


def make_lateness_by_hour(report: Report) -> Section:
    rows: list[Row] = [
        [hour, sum(counts.values()), *compute_percentiles(counts)]
        for hour, counts in late_by_local_hour(report.days).items()
    ]
    columns = (Column(f"Hour ({zone_name()})"), Column("Measured", "count"), *PERCENTILES)
    title = f"Lateness by hour ({zone_name()})"
    return Section("late_hours", title, columns, rows, "No delivery was measured.")


def make_lateness_by_delay(report: Report) -> Section:
    rows: list[Row] = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("late_by_delay", group)
        if counts:
            early = counts.get(buckets.EARLY, 0) / sum(counts.values())
            rows.append([label, sum(counts.values()), *compute_percentiles(counts), early])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count")),
        *(*PERCENTILES, Column("Early", "share")),
    )
    title = "Lateness by requested delay"
    return Section("delays", title, columns, rows, "No delivery was measured.")


def make_lateness_of_probes(report: Report) -> Section:
    missing, unmeasured = (report.total.by(f"probes_{fate}") for fate in ("missing", "unmeasured"))
    rows: list[Row] = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("probes_late", group)
        if counts or missing[group] or unmeasured[group]:
            number = sum(counts.values())
            early = ratio(counts.get(buckets.EARLY, 0), number)
            percentiles = compute_percentiles(counts)
            rows.append([label, number, *percentiles, early, unmeasured[group], missing[group]])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count"), *PERCENTILES),
        *(Column("Early", "share"), Column("Not measured", "count")),
        Column("Not arrived", "count"),
    )
    return Section("probes", "Lateness of probes", columns, rows, "No probe was sent.")


def make_lateness_distribution(report: Report) -> Section:
    counts = report.total.late
    rows: list[Row] = []
    for bucket in range(max(counts, default=-1) + 1):
        if bucket in (buckets.EARLY, buckets.ON_TIME):
            low, high = (None, -50.0) if bucket == buckets.EARLY else (-50.0, 1.0)
        else:
            low, high = buckets.bounds(bucket)
        rows.append([low, high, counts.get(bucket, 0)])
    columns = (Column("From", "ms"), Column("To", "ms"), Column("Messages", "count"))
    title = "Distribution of lateness"
    return Section("distribution", title, columns, rows, "No delivery was measured.")


def make_not_measured(report: Report) -> Section:
    labels = dict(Reason.choices)
    rows: list[Row] = [
        [labels.get(str(reason), str(reason)), number]
        for reason, number in report.total.by("uncounted").most_common()
    ]
    columns = (Column("Reason"), Column("Deliveries", "count"))
    return Section("uncounted", "Not measured", columns, rows, "Every delivery was measured.")


def make_exact_delays(report: Report) -> Section:
    rows: list[Row] = [
        [
            *(row.place, format_delay(row.requested_delay), row.measured),
            *(row.p50_ms, row.p90_ms, row.p95_ms, row.p99_ms, row.max_ms, row.early_share),
        ]
        for row in report.exact
        if row.measured
    ]
    columns = (
        *(Column("Topology"), Column("Delay"), Column("Measured", "count"), *PERCENTILES),
        *(Column("Max", "ms"), Column("Early", "share")),
    )
    return Section("exact", "Exact delays", columns, rows, "No delivery was measured.")
