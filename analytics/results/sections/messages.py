"""The tables of a report about all messages: hours, loss, topologies, service level."""

from __future__ import annotations

from analytics.results.figures import ENTERED, FATES
from analytics.results.read import Report
from analytics.results.sections.section import DAY, TOTAL, Column, Row, Section, ratio
from analytics.results.slo import attainment


def make_ledger(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.fate(ENTERED), *(figures.fate(fate) for fate in FATES)]
        for day, figures in report.days.items()
        if figures.fate(ENTERED)
    ]
    if rows:
        rows.append(
            [TOTAL, report.total.fate(ENTERED), *(report.total.fate(fate) for fate in FATES)]
        )
    fates = (Column(fate.capitalize(), "count") for fate in FATES)
    columns = (Column(DAY), Column("Scheduled", "count"), *fates)
    return Section("ledger", "Loss ledger", columns, rows, "No message was scheduled.")


def make_topologies(report: Report) -> Section:
    # Of a destination nobody counts these.
    are_known = report.selection.has_retries
    rows: list[Row] = [
        [
            *(report.names[row.topology], row.measured, row.worst_p99_ms),
            *(row.target, row.attained.share if row.attained else None),
            row.attained.result if row.attained else None,
            *(
                (row.messages, ratio(row.retried, row.messages), row.exhausted)
                if are_known
                else (None, None, None)
            ),
            row.unexplained,
        ]
        for row in report.topologies
    ]
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
                rows.append(
                    [
                        *(day.isoformat(), found.measured, found.measured - found.within),
                        *(found.share, found.burn_rate, str(slo), report.topology_name),
                    ]
                )
    columns = (
        *(Column(DAY), Column("Measured", "count"), Column("Late", "count")),
        *(Column("Attainment", "share"), Column("Burn rate", "number")),
        *(Column("Target"), Column("Topology")),
    )
    return Section("slo", "Service level objective", columns, rows, "No delivery was measured.")
