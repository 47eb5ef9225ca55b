"""The tables of a report: what its charts draw, its page lists and its CSV files hold."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeAlias
from urllib.parse import urlencode

from django.utils.html import escape
from django.utils.safestring import SafeString

from analytics import buckets
from analytics.models.results import Reason
from analytics.results.definitions import DEFINITIONS
from analytics.results.figures import (
    DEAD_LETTER_GROUPS,
    ENTERED,
    EXHAUSTED,
    FATES,
    GROUP_MESSAGES,
    GROUPS,
    OPEN,
    RECOVERED,
    REPLAY_AGES,
    REPLAYS,
    Key,
    Way,
    kaplan_meier,
)
from analytics.results.hours import (
    by_local_hour,
    late_by_local_hour,
    local_hours,
    waiting,
    zone_name,
)
from analytics.results.read import Report
from analytics.results.slo import attainment
from topology.delays import format_delay
from topology.graph.isolate_names import isolated
from topology.graph.live_values import count_text

Value: TypeAlias = str | int | float | None
Row: TypeAlias = Sequence[Value]
DAY, TOTAL = "Day", "Total"
MOST_CAUSES = 20
MOST_OPEN_ROWS = 20
# Of each kind of group so many values, and the share still failing after these attempts.
MOST_OF_GROUP, SHOWN_ATTEMPTS = 8, (1, 3)
DIMENSIONS = ("queue", "reason", "exception", "routing key", "publisher", "version")
SEARCHED = {"queue": "died", "reason": "reason", "exception": "exception"}
HANDLED = ("arrived", "parked", "replayed", "discarded")
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
    day_url: str = ""
    """The same page without a range: a day in the first column links to the report of that day."""
    buckets: Sequence[str] = ()
    """Of each row what the page of recorded messages finds it by (`messages.read_bucket`)."""
    messages_url: str = ""
    """That page with range and filters; empty where no message of the range is kept."""

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
        rows = zip(self.cells, self.links, strict=True)
        return SafeString(
            "".join(f"<tr>{''.join(_row_html(row, link))}</tr>" for row, link in rows)
        )

    @property
    def links(self) -> list[str]:
        """Of each row where its first cell leads to; "" is nowhere."""
        if self.buckets and self.messages_url:
            return [f"{self.messages_url}{bucket}" for bucket in self.buckets]
        if self.searches and self.parked_url:
            found = [urlencode({"q": search}) if search else "" for search in self.searches]
            return [f"{self.parked_url}?{query}" if query else "" for query in found]
        if self.day_url and self.columns[0].label == DAY:
            days = [str(row[0]) for row in self.rows]
            return [f"{self.day_url}from={day}&to={day}" if day != TOTAL else "" for day in days]
        return [""] * len(self.rows)

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


_HANDLED_COLUMNS = tuple(Column(kind.capitalize(), "count") for kind in HANDLED)


def search_of(first: date, last: date, **values: str) -> str:
    """What finds the messages parked on these days, by the fields that have a value."""
    quoted = (f'{name}:"{_QUOTED.sub(_ESCAPED, value)}"' for name, value in values.items() if value)
    days = f"parked:>={first} parked:<{last + timedelta(days=1)}"
    return " ".join((*quoted, days, "state:any"))


def bucket_of(kind: str, **values: Value) -> str:
    """What the page of recorded messages finds the messages of a row by."""
    return urlencode({"kind": kind, **values})


def _lateness(report: Report) -> Section:
    rows: list[Row] = [
        [day.isoformat(), figures.measured, *_percentiles(figures.late)]
        for day, figures in report.days.items()
        if figures.measured
    ]
    columns = (Column(DAY), Column("Measured", "count"), *PERCENTILES)
    empty = "No delivery was measured."
    if report.total.total("probes_late"):
        empty += " Only probes were measured, see “Lateness of probes”."
    return Section("lateness", "Lateness by day", columns, rows, empty)


def _late_hours(report: Report) -> Section:
    rows: list[Row] = [
        [hour, sum(counts.values()), *_percentiles(counts)]
        for hour, counts in late_by_local_hour(report.days).items()
    ]
    columns = (Column(f"Hour ({zone_name()})"), Column("Measured", "count"), *PERCENTILES)
    title, empty = f"Lateness by hour ({zone_name()})", "No delivery was measured."
    found = [bucket_of("measured", hour=row[0]) for row in rows]
    return Section("late_hours", title, columns, rows, empty, buckets=found)


def _delays(report: Report) -> Section:
    rows: list[Row] = []
    found = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("late_by_delay", group)
        if counts:
            found.append(bucket_of("measured", delay=group))
            early = counts.get(buckets.EARLY, 0) / sum(counts.values())
            rows.append([label, sum(counts.values()), *_percentiles(counts), early])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count")),
        *(*PERCENTILES, Column("Early", "share")),
    )
    title, empty = "Lateness by requested delay", "No delivery was measured."
    return Section("delays", title, columns, rows, empty, buckets=found)


def _probes(report: Report) -> Section:
    missing, unmeasured = (report.total.by(f"probes_{fate}") for fate in ("missing", "unmeasured"))
    rows: list[Row] = []
    for group, label in enumerate(buckets.DELAY_LABELS):
        counts = report.total.within_group("probes_late", group)
        if counts or missing[group] or unmeasured[group]:
            number = sum(counts.values())
            early = ratio(counts.get(buckets.EARLY, 0), number)
            percentiles = _percentiles(counts)
            rows.append([label, number, *percentiles, early, unmeasured[group], missing[group]])
    columns = (
        *(Column("Requested delay"), Column("Measured", "count"), *PERCENTILES),
        *(Column("Early", "share"), Column("Not measured", "count")),
        Column("Not arrived", "count"),
    )
    return Section("probes", "Lateness of probes", columns, rows, "No probe was sent.")


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
    title, empty = "Distribution of lateness", "No delivery was measured."
    found = [bucket_of("measured", late=bucket) for bucket in range(len(rows))]
    return Section("distribution", title, columns, rows, empty, buckets=found)


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
        *(Column(DAY), Column("Retried", "count"), Column("Attempts per message", "number")),
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
            *(ratio(step.recovered, step.at_risk), step.failing),
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
    empty = "No message with an id was retried."
    found = [bucket_of("retried", attempt=row[0]) for row in rows]
    return Section("survival", title, columns, rows, empty, buckets=found)


def _failures(report: Report) -> Section:
    messages = by_local_hour(report.days, "messages_by_hour")
    retried = by_local_hour(report.days, "retried_by_hour")
    rows: list[Row] = [
        [hour, number, retried[hour], ratio(retried[hour], number)]
        for hour, number in messages.items()
        if any(messages.values())
    ]
    columns = (
        *(Column(f"Hour ({zone_name()})"), Column("Messages", "count")),
        *(Column("First-time failures", "count"), Column("Share", "share")),
    )
    title = f"First-time failures by hour ({zone_name()})"
    empty = "No message with an id was recorded."
    found = [bucket_of("retried", hour=row[0]) for row in rows]
    return Section("failures", title, columns, rows, empty, buckets=found)


def _dead_letters(report: Report) -> Section:
    found = [
        (day, reason, figures.counts["dead_letters"])
        for day, figures in report.days.items()
        for reason in sorted({str(reason) for _, reason in figures.counts["dead_letters"]})
    ]
    rows: list[Row] = [
        [day.isoformat(), reason or "unknown", *(counts[kind, reason] for kind in HANDLED)]
        for day, reason, counts in found
    ]
    columns = (Column(DAY), Column("Reason"), *_HANDLED_COLUMNS)
    searches = [search_of(day, day, reason=reason) for day, reason, _ in found]
    title = "Dead letters by reason"
    return Section("dead_letters", title, columns, rows, "No dead letter arrived.", searches)


def _handled(report: Report) -> Section:
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
    columns = (Column("Died in"), Column("Reason"), Column("Exception"), *_HANDLED_COLUMNS)
    first, last = report.period.first, report.period.last
    searches = [
        search_of(first, last, died=origin, reason=reason, exception=exception)
        for reason, origin, exception in origins
    ]
    title = "Dead letters by origin"
    return Section("handled", title, columns, rows, "No dead letter arrived.", searches)


def _replays(report: Report) -> Section:
    counts = report.total.by(REPLAYS)
    rows: list[Row] = [
        [str(outcome).capitalize(), number, ratio(number, counts.total())]
        for outcome, number in counts.most_common()
    ]
    columns = (Column("Outcome"), Column("Replays", "count"), Column("Share", "share"))
    return Section("replays", "Outcome of replays", columns, rows, "No message was replayed.")


def _ages(report: Report) -> Section:
    counts = report.total.by(REPLAY_AGES)
    rows: list[Row] = [
        [label, counts[bucket], ratio(counts[bucket], counts.total())]
        for bucket, label in enumerate(buckets.DELAY_LABELS)
        if counts[bucket]
    ]
    columns = (Column("Age"), Column("Replays", "count"), Column("Share", "share"))
    return Section("ages", "Age at replay", columns, rows, "No replay has a known age.")


def _groups(report: Report) -> Section:
    ways: defaultdict[tuple[str, str], dict[Way, int]] = defaultdict(dict)
    for key, number in report.total.items(GROUPS):
        dimension, value, attempt, end, outcome = key
        ways[str(dimension), str(value)][int(attempt), int(end), str(outcome)] = number
    known = report.total.counts[GROUP_MESSAGES]
    names = {*ways, *((str(dimension), str(value)) for dimension, value, _ in known)}
    sizes = {
        name: (sum(ways[name].values()) if name in ways else 0, known[*name, "messages"])
        for name in names
    }
    shown = [
        name
        for dimension in DIMENSIONS
        for name in sorted(
            (one for one in names if one[0] == dimension), key=lambda one: (sizes[one], one)
        )[: -MOST_OF_GROUP - 1 : -1]
    ]
    rows: list[Row] = [_group_row(name, ways.get(name, {}), known) for name in shown]
    columns = (
        *(Column("Value"), Column("Group"), Column("Messages", "count")),
        *(Column("First-time failures", "share"), Column("Retried", "count")),
        *(Column("Attempts per message", "number"), Column("Recovered", "count")),
        Column("Exhausted", "count"),
        *(Column(f"Failing after {number}", "share") for number in SHOWN_ATTEMPTS),
    )
    first, last = report.period.first, report.period.last
    searches = [
        search_of(first, last, **{SEARCHED[dimension]: value}) if dimension in SEARCHED else ""
        for dimension, value in shown
    ]
    title, empty = "Retries by group", "No message with an id was retried."
    return Section("groups", title, columns, rows, empty, searches)


def _group_row(name: tuple[str, str], ways: Mapping[Way, int], known: Mapping[Key, int]) -> Row:
    outcomes: Counter[str] = Counter()
    attempts = 0
    for (first, last, outcome), number in ways.items():
        outcomes[outcome] += number
        # A message that still waits is in the attempt after its last one.
        attempts += number * (last - first + 1 + (outcome == OPEN))
    messages = known.get((*name, "messages"))
    failing = {step.attempt: step.failing for step in kaplan_meier(ways) if step.at_risk}
    return [
        *(name[1], name[0], messages),
        ratio(known.get((*name, "retried"), 0), messages or 0),
        *(outcomes.total(), ratio(attempts, outcomes.total())),
        *(outcomes[one] for one in (RECOVERED, EXHAUSTED)),
        *(failing.get(number) for number in SHOWN_ATTEMPTS),
    ]


def _heat(report: Report) -> Section:
    counts: Counter[tuple[int, str, str]] = Counter()
    for day, figures in report.days.items():
        for table in ("messages", "retried"):
            by_hour = figures.by(f"{table}_by_hour")
            for hour, begin in enumerate(local_hours(day)):
                counts[begin.weekday(), f"{begin:%H:%M}", table] += by_hour[hour]
    places = sorted({(weekday, hour) for weekday, hour, _ in +counts})
    rows: list[Row] = [
        [WEEKDAYS[weekday], hour, messages, retried, ratio(retried, messages)]
        for weekday, hour in places
        if (messages := counts[weekday, hour, "messages"])
        for retried in [counts[weekday, hour, "retried"]]
    ]
    columns = (
        *(Column("Weekday"), Column(f"Hour ({zone_name()})"), Column("Messages", "count")),
        *(Column("Retried", "count"), Column("Share", "share")),
    )
    title = f"Retries by weekday and hour ({zone_name()})"
    empty = "No message with an id was recorded."
    found = [bucket_of("retried", weekday=WEEKDAYS.index(row[0]), hour=row[1]) for row in rows]
    return Section("heat", title, columns, rows, empty, buckets=found)


def _throughput(report: Report) -> Section:
    entered = by_local_hour(report.days, "entered_by_hour")
    # Times in delays are counted by topology, and of no destination.
    is_known = not report.selection.destination
    depths = waiting(report.days, report.earlier) if is_known else {}
    rows: list[Row] = [
        [hour, number, number / len(report.days), depths[hour] if is_known else None]
        for hour, number in entered.items()
        if any(entered.values()) or any(depths.values())
    ]
    columns = (
        *(Column(f"Hour ({zone_name()})"), Column("Scheduled", "count")),
        *(Column("Scheduled per day", "number"), Column("Waiting at its end", "number")),
    )
    title = f"Scheduled and waiting by hour ({zone_name()})"
    found = [bucket_of("scheduled", hour=row[0]) for row in rows]
    empty = "No message was scheduled."
    return Section("throughput", title, columns, rows, empty, buckets=found)


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
            [TOTAL, report.total.fate(ENTERED), *(report.total.fate(fate) for fate in FATES)]
        )
    fates = (Column(fate.capitalize(), "count") for fate in FATES)
    columns = (Column(DAY), Column("Scheduled", "count"), *fates)
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
            found = attainment(figures.late, slo.percent, slo.within_ms)
            if found.measured:
                rows.append(
                    [
                        *(day.isoformat(), found.measured, found.measured - found.within),
                        *(found.share, found.burn_rate),
                    ]
                )
    columns = (
        *(Column(DAY), Column("Measured", "count"), Column("Late", "count")),
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
    *(_lateness, _late_hours, _delays, _probes, _distribution, _survival, _failures),
    *(
        _dead_letters,
        _heat,
        _throughput,
        _recovery,
        _groups,
        _causes,
        _handled,
        _replays,
        _ages,
        _uncounted,
        _ledger,
    ),
    *(_topologies, _exact, _slo),
)
