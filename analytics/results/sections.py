"""The tables of a report: what its charts draw, its page lists and its CSV files hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeAlias
from urllib.parse import urlencode

from django.utils.html import escape
from django.utils.safestring import SafeString

from analytics import buckets
from analytics.models.results import Reason
from analytics.results.definitions import DEFINITIONS
from analytics.results.figures import ENTERED, EXHAUSTED, FATES, RECOVERED, Figures
from analytics.results.read import Report
from analytics.results.slo import attainment
from topology.delays import format_delay
from topology.graph.isolate_names import isolated
from topology.graph.live_values import count_text

Value: TypeAlias = str | int | float | None
Row: TypeAlias = Sequence[Value]
MOST_CAUSES = 20
MOST_OPEN_ROWS = 20
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# What a search takes for itself within quotes.
_QUOTED, _ESCAPED = re.compile(r'["\\*]'), r"\\\g<0>"
_FORMULA = re.compile(r"^[=+\-@\t\r]")


@dataclass(frozen=True)
class Column:
    """`kind`: text, count, number, ms or share."""

    label: str
    kind: str = "text"

    def text(self, value: Value) -> str:
        """The value as a person reads it."""
        if value is None:
            return "–"
        if self.kind == "count":
            return count_text(int(value))
        if self.kind == "number":
            return f"{float(value):.2f}"
        if self.kind == "ms":
            return duration(float(value))
        if self.kind == "share":
            return percent(float(value))
        return str(value)


@dataclass(frozen=True)
class Section:
    """A chart's numbers, or a table without chart."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str
    searches: Sequence[str] = ()
    """Of each row the search for its parked messages."""
    parked_url: str = ""
    """The page that takes the searches; empty where there is none for all of the report."""

    @property
    def definition(self) -> str:
        return DEFINITIONS[self.key]

    @property
    def is_long(self) -> bool:
        """Whether the page folds the table away."""
        return len(self.rows) > MOST_OPEN_ROWS

    @property
    def body(self) -> SafeString:
        """The rows of a table's body; by Python, since a template takes ten times as long."""
        searches = self.searches if self.parked_url else ()
        links = [f"{self.parked_url}?{urlencode({'q': search})}" for search in searches]
        rows = zip(self.cells, links or [""] * len(self.rows), strict=True)
        return SafeString(
            "".join(f"<tr>{''.join(_row_html(row, link))}</tr>" for row, link in rows)
        )

    @property
    def cells(self) -> Iterator[list[tuple[str, bool]]]:
        """Per row the texts, and whether each is a number."""
        for row in self.rows:
            yield [
                (column.text(value), column.kind != "text")
                for column, value in zip(self.columns, row, strict=True)
            ]

    def csv_rows(self) -> Iterator[list[Value]]:
        """The head and the raw values; a text that a spreadsheet would compute is quoted."""
        yield [f"{c.label} ms" if c.kind == "ms" else c.label for c in self.columns]
        for row in self.rows:
            yield [_harmless(value) for value in row]


def _row_html(row: Sequence[tuple[str, bool]], link: str) -> Iterator[str]:
    for place, (text, is_number) in enumerate(row):
        shown = text if is_number else escape(isolated(text))
        if link and not place:
            shown = f'<a href="{escape(link)}">{shown}</a>'
        kind = ' class="number"' if is_number else ""
        yield f"<td{kind}>{shown}</td>" if place else f'<th scope="row"{kind}>{shown}</th>'


def duration(ms: float) -> str:
    """Such as "0.4 ms", "64 ms", "2.1 s" or "3m20s"."""
    if abs(ms) < 1000:
        return f"{ms:.1f} ms" if 0 < abs(ms) < 9.95 else f"{ms:.0f} ms"
    if abs(ms) < 59_950:
        return f"{ms / 1000:.1f} s"
    return format_delay(timedelta(seconds=round(ms / 1000)))


def percent(share: float) -> str:
    """With one digit after the point, more where that would hide that it is not 0 or 100."""
    digits = 1 if share in (0, 1) or 0.0005 <= share <= 0.9995 else 3
    return f"{100 * share:.{digits}f} %"


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def sections(report: Report) -> dict[str, Section]:
    """Every table by its key, in the order of the page."""
    made = [make(report) for make in MAKERS]
    return {section.key: section for section in made}


def _harmless(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _percentiles(counts: buckets.Counts) -> list[float | None]:
    return [buckets.percentile(counts, share) for share in (0.5, 0.9, 0.95, 0.99)]


PERCENTILES = (
    *(Column("p50", "ms"), Column("p90", "ms")),
    *(Column("p95", "ms"), Column("p99", "ms")),
)


def search_of(first: date, last: date, **values: str) -> str:
    """What finds the messages parked on these days, by the fields that have a value."""
    quoted = (f'{name}:"{_QUOTED.sub(_ESCAPED, value)}"' for name, value in values.items() if value)
    days = f"parked:>={first} parked:<{last + timedelta(days=1)}"
    return " ".join((*quoted, days, "state:any"))


def _lateness(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.measured, *_percentiles(figures.late)]
        for day, figures in report.days.items()
        if figures.measured
    ]
    columns = (Column("Day"), Column("Measured", "count"), *PERCENTILES)
    return Section("lateness", "Lateness by day", columns, rows, "No delivery was measured.")


def _delays(report: Report) -> Section:
    rows: list[Row] = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("late_by_delay", group)
        if counts:
            early = counts.get(buckets.EARLY, 0) / sum(counts.values())
            rows.append([label, sum(counts.values()), *_percentiles(counts), early])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count")),
        *(*PERCENTILES, Column("Early", "share")),
    )
    title = "Lateness by requested delay"
    return Section("delays", title, columns, rows, "No delivery was measured.")


def _distribution(report: Report) -> Section:
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


def _recovery(report: Report) -> Section:
    rows: list[Row] = []
    for day, figures in report.days.items():
        done, exhausted = figures.outcome(RECOVERED), figures.outcome(EXHAUSTED)
        tries = figures.total("attempts")
        if done or exhausted or tries:
            times = (buckets.percentile(figures.recoveries, share) for share in (0.5, 0.9, 0.99))
            rows.append(
                [
                    *(day.isoformat(), figures.retried, ratio(tries, figures.retried)),
                    *(done, exhausted, ratio(done, done + exhausted), *times),
                ]
            )
    columns = (
        *(Column("Day"), Column("Retried", "count"), Column("Attempts per message", "number")),
        *(Column("Recovered", "count"), Column("Exhausted", "count")),
        *(Column("Share recovered", "share"), Column("Recovery time p50", "ms")),
        *(Column("Recovery time p90", "ms"), Column("Recovery time p99", "ms")),
    )
    return Section("recovery", "Recovery by retry", columns, rows, "No message was retried.")


def _uncounted(report: Report) -> Section:
    labels = dict(Reason.choices)
    rows: list[Row] = [
        [labels.get(str(reason), str(reason)), number]
        for reason, number in report.total.by("uncounted").most_common()
    ]
    columns = (Column("Reason"), Column("Deliveries", "count"))
    return Section("uncounted", "Not measured", columns, rows, "Every delivery was measured.")


def _survival(report: Report) -> Section:
    rows: list[Row] = [
        [
            *(step.attempt, step.at_risk, step.recovered, step.exhausted, step.censored),
            *(step.recovered / step.at_risk, step.failing),
        ]
        for step in report.total.survival()
    ]
    columns = (
        *(Column("Attempt", "count"), Column("Messages", "count"), Column("Recovered", "count")),
        *(
            Column("Exhausted", "count"),
            Column("Waiting", "count"),
            Column("Share recovered", "share"),
        ),
        Column("Still failing", "share"),
    )
    title = "Messages still failing after each attempt"
    return Section("survival", title, columns, rows, "No message with an id was retried.")


def _failures(report: Report) -> Section:
    retried, messages = (report.total.by(f"{name}_by_hour") for name in ("retried", "messages"))
    rows: list[Row] = [
        [f"{hour:02}:00", messages[hour], retried[hour], ratio(retried[hour], messages[hour])]
        for hour in range(24)
        if messages
    ]
    columns = (
        *(Column("Hour (UTC)"), Column("Messages", "count")),
        *(Column("First-time failures", "count"), Column("Share", "share")),
    )
    title = "First-time failures by hour"
    return Section("failures", title, columns, rows, "No message with an id was recorded.")


def _dead_letters(report: Report) -> Section:
    found = [
        (day, str(reason), number)
        for day, figures in report.days.items()
        for (kind, reason), number in sorted(figures.counts["dead_letters"].items(), key=str)
        if kind == "parked"
    ]
    rows: list[Row] = [
        [day.isoformat(), reason or "unknown", number] for day, reason, number in found
    ]
    columns = (Column("Day"), Column("Reason"), Column("Parked", "count"))
    searches = [search_of(day, day, reason=reason) for day, reason, _ in found]
    title = "Dead letters by reason"
    return Section("dead_letters", title, columns, rows, "No message was parked.", searches)


def _handled(report: Report) -> Section:
    counts = report.total.counts["dead_letters"]
    reasons = sorted({str(reason) for _, reason in counts})
    kinds = ("parked", "replayed", "discarded")
    rows: list[Row] = [
        [reason or "unknown", *(counts[kind, reason] for kind in kinds)] for reason in reasons
    ]
    columns = (Column("Reason"), *(Column(kind.capitalize(), "count") for kind in kinds))
    first, last = report.period.first, report.period.last
    searches = [search_of(first, last, reason=reason) for reason in reasons]
    title, empty = "Parked, replayed and discarded", "No message was parked or replayed."
    return Section("handled", title, columns, rows, empty, searches)


def _heat(report: Report) -> Section:
    by_weekday = [Figures() for _ in WEEKDAYS]
    for day, figures in report.days.items():
        by_weekday[day.weekday()].add(figures)
    rows: list[Row] = []
    for name, figures in zip(WEEKDAYS, by_weekday, strict=True):
        retried, messages = (figures.by(f"{one}_by_hour") for one in ("retried", "messages"))
        rows += [
            [
                name,
                f"{hour:02}:00",
                messages[hour],
                retried[hour],
                ratio(retried[hour], messages[hour]),
            ]
            for hour in range(24)
            if messages[hour]
        ]
    columns = (
        *(Column("Weekday"), Column("Hour (UTC)"), Column("Messages", "count")),
        *(Column("Retried", "count"), Column("Share", "share")),
    )
    title = "Retries by weekday and hour"
    return Section("heat", title, columns, rows, "No message with an id was recorded.")


def _throughput(report: Report) -> Section:
    entered = report.total.by("entered_by_hour")
    rows: list[Row] = [[f"{hour:02}:00", entered[hour]] for hour in range(24) if entered]
    columns = (Column("Hour (UTC)"), Column("Scheduled", "count"))
    return Section("throughput", "Scheduled by hour", columns, rows, "No message was scheduled.")


def _causes(report: Report) -> Section:
    most = report.total.counts["causes"].most_common(MOST_CAUSES)
    rows: list[Row] = [[*key, number] for key, number in most]
    columns = (
        *(Column("Queue"), Column("Reason"), Column("Exception")),
        *(Column("Routing key"), Column("Failures", "count")),
    )
    first, last = report.period.first, report.period.last
    searches = [
        search_of(first, last, died=str(queue), reason=str(reason), exception=str(exception))
        for (queue, reason, exception, _), _ in most
    ]
    title, empty = "Causes of failures", "No failure was recorded."
    return Section("causes", title, columns, rows, empty, searches)


def _ledger(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.fate(ENTERED), *(figures.fate(fate) for fate in FATES)]
        for day, figures in report.days.items()
        if figures.fate(ENTERED)
    ]
    if rows:
        rows.append(
            ["Total", report.total.fate(ENTERED), *(report.total.fate(fate) for fate in FATES)]
        )
    fates = (Column(fate.capitalize(), "count") for fate in FATES)
    columns = (Column("Day"), Column("Scheduled", "count"), *fates)
    return Section("ledger", "Loss ledger", columns, rows, "No message was scheduled.")


def _topologies(report: Report) -> Section:
    rows: list[Row] = [
        [
            *(row.topology, row.measured, row.worst_p99_ms, row.messages),
            *(ratio(row.retried, row.messages), row.exhausted, row.unexplained),
        ]
        for row in report.topologies
    ]
    columns = (
        *(Column("Topology"), Column("Measured", "count"), Column("Highest daily p99", "ms")),
        *(Column("Messages", "count"), Column("First-time failures", "share")),
        *(Column("Exhausted", "count"), Column("Unexplained", "count")),
    )
    return Section("topologies", "Topologies", columns, rows, "No topology has figures.")


def _slo(report: Report) -> Section:
    rows: list[Row] = []
    if slo := report.slo:
        for day, figures in report.days.items():
            found = attainment(figures, slo.percent, slo.within_ms)
            if found.measured:
                rows.append(
                    [
                        *(day.isoformat(), found.measured, found.measured - found.within),
                        *(found.share, found.burn_rate),
                    ]
                )
    columns = (
        *(Column("Day"), Column("Measured", "count"), Column("Late", "count")),
        *(Column("Attainment", "share"), Column("Burn rate", "number")),
    )
    return Section("slo", "Service level objective", columns, rows, "No delivery was measured.")


def _exact(report: Report) -> Section:
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


MAKERS: tuple[Callable[[Report], Section], ...] = (
    *(_lateness, _delays, _distribution, _survival, _failures, _dead_letters, _heat),
    *(_throughput, _recovery, _causes, _handled, _uncounted, _ledger, _topologies, _exact, _slo),
)
