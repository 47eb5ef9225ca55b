"""The tables of a report: what its charts draw, its page lists and its CSV files hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime

from analytics import buckets
from analytics.results.figures import (
    DEAD_LETTER_GROUPS,
    DELIVERED,
    ENTERED,
    EXHAUSTED,
    FATES,
    GROUP_MESSAGES,
    GROUPS,
    LEFT,
    OPEN,
    RECOVERED,
    Key,
    Trail,
    kaplan_meier,
)
from analytics.results.period import local_hours, zone_name
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
    search_parked_hour,
)
from analytics.results.slo import attainment, error_limit
from topology.delays import format_ms

PERCENTILES = tuple(Column(name, "ms") for name in ("p50", "p90", "p95", "p99"))
LATENESS = (*PERCENTILES, Column("Max", "ms"), Column("Early", "share"))
MOST_ORIGINS = 20
HANDLED = ("arrived", "parked", "replayed", "discarded")
HANDLED_COLUMNS = tuple(Column(kind.capitalize(), "count") for kind in HANDLED)

OUTCOME_UNKNOWN = "Left, outcome unknown"
MOST_CAUSES = 20
# Most values of a group, and the attempts after which the share that still fails is shown.
MOST_OF_GROUP, SHOWN_ATTEMPTS = 8, (1, 3)
DIMENSIONS = ("queue", "reason", "exception", "routing key", "publisher", "version")
SEARCHED = {"queue": "died", "reason": "reason", "exception": "exception"}

# Buckets of a band of lateness: each factor of ten has two bands.
_WIDTH = 5
BANDS = (
    ("< 1ms", buckets.EARLY, buckets.FIRST_LOG_BUCKET),
    *(
        (f"≥ {format_ms(buckets.bounds(first)[0])}", first, first + _WIDTH)
        for first in range(buckets.FIRST_LOG_BUCKET, len(buckets.EDGES_MS) + 1, _WIDTH)
    ),
)
ONCE = {"range": "custom"}


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
        [
            *(day.isoformat(), figures.measured, *describe_lateness(figures.late)),
            *(figures.measure_error(), figures.fate(DELIVERED) - figures.measured),
        ]
        for day, figures in report.days.items()
        if figures.measured or figures.fate(DELIVERED)
    ]
    last = (Column("Error", "ms"), Column("Not measured", "count"))
    columns = (Column(DAY), Column("Measured", "count"), *LATENESS, *last)
    empty = "No delivery was measured."
    if report.total.total("probes_late"):
        empty += " Only probes were measured, see “Lateness of probes”."
    title = "Lateness by day" if report.period.length > 1 else "Lateness"
    return Section("lateness", title, columns, rows, empty)


def hour_label(begin: datetime) -> str:
    return f"{begin:%H:%M}"


def make_lateness_map(report: Report) -> Section:
    """Measured deliveries by band of lateness and day, or of one day by hour of entry."""
    is_one = report.period.length == 1
    spans: list[tuple[str, dict[str, str], buckets.Counts]] = []
    for day, figures in report.days.items():
        of_day = ONCE | dict.fromkeys(("from", "to"), day.isoformat())
        if not is_one:
            spans.append((day.isoformat(), of_day, figures.late))
            continue
        # An hour that the clocks repeat is one row, as its link counts both.
        by_label = {hour_label(begin): Counter[int]() for begin in local_hours(day)}
        for hour, begin in enumerate(local_hours(day)):
            by_label[hour_label(begin)].update(figures.within_group("late_by_hour", hour))
        spans += [(label, of_day | {"hour": label}, late) for label, late in by_label.items()]
    used = {place for *_, late in spans for place, band in enumerate(BANDS) if _in(late, band)}
    bands = BANDS[min(used) : max(used) + 1] if used else ()
    rows: list[Row] = []
    found = []
    recorded = {
        hour_label(begin) if is_one else day.isoformat()
        for day in report.days
        for begin in local_hours(day)
        if begin not in report.unrecorded
    }
    for label, place, late in spans if used else ():
        is_known = late or label in recorded
        numbers = [_in(late, band) if is_known else None for band in bands]
        rows.append([label, *numbers])
        found.append(
            [
                bucket_of("measured", number or 0, **place, **_limits(band))
                for number, band in zip(numbers, bands, strict=True)
            ]
        )
    first = Column(f"Hour ({zone_name()})" if is_one else DAY)
    columns = (first, *(Column(label, "count") for label, *_ in bands))
    title, empty = "Deliveries by lateness", "No delivery was measured."
    return Section("lateness_map", title, columns, rows, empty, cells_of=found)


def _in(late: buckets.Counts, band: tuple[str, int, int]) -> int:
    _, first, after = band
    return sum(number for bucket, number in late.items() if first <= bucket < after)


def _limits(band: tuple[str, int, int]) -> dict[str, int]:
    """The parameters of `read_bucket` that are limits: the ends are open."""
    _, first, after = band
    low = {"late_from": first} if first > buckets.EARLY else {}
    return low | ({"late_to": after} if after <= len(buckets.EDGES_MS) else {})


def make_failures_map(report: Report) -> Section:
    """Recorded failures by day and hour; days that were computed before they were counted by hour
    are missing.
    """
    counted = {
        day: figures.by("failures_by_hour")
        for day, figures in report.days.items()
        if figures.total("failures_by_hour") or not figures.total("causes")
    }

    def query(day: date, begin: datetime, number: int) -> str:
        of_day = ONCE | dict.fromkeys(("from", "to"), day.isoformat())
        return bucket_of("retried", number, **of_day, hour=hour_label(begin))

    title, empty = "Failures by day and hour", "No failure was recorded by hour."
    return _by_hour(report, "failures_map", title, counted, query, empty)


def make_dead_letters_map(report: Report) -> Section:
    """The same of dead letters that arrived."""
    counted: dict[date, Counter[str | int]] = {}
    parked: Counter[tuple[date, int]] = Counter()
    for day, figures in report.days.items():
        by_hour = figures.counts["dead_letters_by_hour"]
        if not by_hour and figures.total("dead_letters"):
            continue
        counted[day] = Counter()
        for (kind, hour), number in by_hour.items():
            if kind == "arrived":
                counted[day][hour] += number
            if kind == "parked":
                parked[day, int(hour)] += number

    def query(day: date, begin: datetime, number: int) -> str:
        hour = begin.astimezone(UTC)
        return search_parked_hour(report, parked[day, hour.hour], hour)

    title, empty = "Dead letters by day and hour", "No dead letter arrived."
    return _by_hour(report, "dead_letters_map", title, counted, query, empty)


def _by_hour(
    report: Report,
    key: str,
    title: str,
    counted: Mapping[date, Mapping[str | int, int]],
    query: Callable[[date, datetime, int], str],
    empty: str,
) -> Section:
    """A row for each day, a column for each of its hours, both in UTC."""
    rows: list[Row] = []
    found = []
    has_any = any(sum(by_hour.values()) for by_hour in counted.values())
    for day, by_hour in counted.items() if has_any else ():
        begins = local_hours(day)
        numbers = [
            by_hour.get(hour) or (None if begin in report.unrecorded else 0)
            for hour, begin in enumerate(begins)
        ]
        rows.append([day.isoformat(), *numbers])
        found.append(
            [query(day, *one) for one in zip(begins, (n or 0 for n in numbers), strict=True)]
        )
    columns = (Column(DAY), *(Column(f"{hour:02}:00 UTC", "count") for hour in range(24)))
    return Section(key, title, columns, rows, empty, cells_of=found)


def make_error(report: Report) -> Section:
    """The hours in which the recorder's error shows."""
    limit_ms = error_limit(report.slo.within_ms if report.slo else None)
    rows: list[Row] = []
    for day, figures in report.days.items():
        begins = local_hours(day)
        early: Counter[int] = Counter()
        for (hour, bucket), number in figures.items("early_by_hour"):
            early[int(hour)] += number if int(bucket) > buckets.ON_TIME else 0
        for hour in sorted(+early):
            measured = sum(figures.within_group("late_by_hour", hour).values())
            error_ms = figures.measure_error(hour) or 0.0
            quality = "bad" if error_ms > limit_ms else "good"
            label = f"{begins[hour]:%Y-%m-%d %H:%M}"
            rows.append([label, measured, early[hour], error_ms, quality])
    columns = (
        *(Column(f"Hour ({zone_name()})"), Column("Measured", "count"), Column("Early", "count")),
        *(Column("Error", "ms"), Column("Measurement")),
    )
    empty = "No measured delivery seems early."
    return Section("error", "Measurement error by hour", columns, rows, empty)


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
        [label, figures.fate(ENTERED), *map(figures.fate, FATES), figures.possible_repeats]
        for label, figures in [*of_days, (TOTAL, report.total)]
        if figures.fate(ENTERED)
    ]
    fates = (Column(fate.capitalize(), "count") for fate in FATES)
    of_unexplained = Column("Of these possibly repeated", "count")
    columns = (Column(DAY), Column("Scheduled", "count"), *fates, of_unexplained)
    return Section("ledger", "Loss ledger", columns, rows, "No message was scheduled.")


def make_topologies(report: Report) -> Section:
    # These are not counted for a single destination.
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
        *(Column("Given up", "count"), Column("Unexplained", "count")),
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


def make_recovery(report: Report) -> Section:
    rows: list[Row] = []
    for day, figures in report.days.items():
        done, left, given_up = (figures.outcome(one) for one in (RECOVERED, LEFT, EXHAUSTED))
        tries = figures.total("attempts")
        if done or left or given_up or tries or figures.messages:
            times = (buckets.percentile(figures.recoveries, share) for share in (0.5, 0.99))
            messages, retried = figures.messages, figures.retried
            attempts = (messages, retried, ratio(retried, messages), ratio(tries, retried))
            ends = (done, left, given_up, None if left else ratio(done, done + given_up))
            timed = figures.total("recoveries")
            rows.append([day.isoformat(), *attempts, *ends, timed, *times])
    columns = (
        *(Column(DAY), Column("Messages", "count"), Column("Retried", "count")),
        *(Column("First-time failures", "share"), Column("Attempts per message", "number")),
        *(Column("Recovered", "count"), Column(OUTCOME_UNKNOWN, "count")),
        *(Column("Given up", "count"), Column("Share recovered", "share")),
        *(Column("Timed", "count"), Column("Retry time p50", "ms")),
        Column("Retry time p99", "ms"),
    )
    return Section("recovery", "Retries by day", columns, rows, "No message was recorded.")


def make_survival(report: Report) -> Section:
    rows: list[Row] = [
        [
            *(step.attempt, step.at_risk, step.recovered, step.left, step.exhausted),
            *(step.censored, None if step.left else ratio(step.recovered, step.at_risk)),
            step.failing,
        ]
        for step in report.total.survival()
    ]
    names = ("Attempt", "Ended", "Recovered", OUTCOME_UNKNOWN, "Given up", "Waiting")
    counts = (Column(name, "count") for name in names)
    still = "failing" if report.total.knows_recoveries else "retried or given up"
    columns = (*counts, Column("Share recovered", "share"), Column(f"Still {still}", "share"))
    title = f"Messages still {still} after each attempt"
    empty = "No message with an id was retried."
    found = [bucket_of("retried", row[1], attempt=row[0]) for row in rows]
    return Section("survival", title, columns, rows, empty, buckets=found)


def make_rates(report: Report) -> Section:
    rows: list[Row] = [
        [report.queues[row.topology], row.messages, row.retried, ratio(row.retried, row.messages)]
        for row in report.retried
    ]
    columns = (
        *(Column("Queue"), Column("Messages", "count"), Column("Retried", "count")),
        Column("Retry rate", "share"),
    )
    return Section("rates", "Retry rate by queue", columns, rows, "No message was retried.")


def make_causes(report: Report) -> Section:
    most = report.total.counts["causes"].most_common(MOST_CAUSES)
    rows: list[Row] = [[*key, number] for key, number in most]
    columns = (
        *(Column("Queue"), Column("Reason"), Column("Exception")),
        *(Column("Routing key"), Column("Failures", "count")),
    )
    # Most failures are not parked, but retried.
    parked = report.total.counts[DEAD_LETTER_GROUPS]
    days = report.period.first, report.period.last
    searches = []
    for (queue, reason, exception, _), _ in most:
        named = {"died": str(queue), "reason": str(reason), "exception": str(exception)}
        number = parked["parked", reason, queue, exception]
        searches.append(search_parked(report, number, days, **named))
    title, empty = "Causes of failures", "No failure was recorded."
    return Section("causes", title, columns, rows, empty, searches)


def make_groups(report: Report) -> Section:
    trails: defaultdict[tuple[str, str], dict[Trail, int]] = defaultdict(dict)
    for key, number in report.total.items(GROUPS):
        dimension, value, attempt, end, outcome = key
        trails[str(dimension), str(value)][int(attempt), int(end), str(outcome)] = number
    known = report.total.counts[GROUP_MESSAGES]
    names = {*trails, *((str(dimension), str(value)) for dimension, value, _ in known)}
    sizes = {
        name: (sum(trails[name].values()) if name in trails else 0, known[*name, "messages"])
        for name in names
    }
    largest = sorted(names, key=lambda one: (sizes[one], one), reverse=True)
    by_dimension = ([one for one in largest if one[0] == dimension] for dimension in DIMENSIONS)
    shown = [one for some in by_dimension for one in some[:MOST_OF_GROUP]]
    rows: list[Row] = [_group_row(name, trails.get(name, {}), known) for name in shown]
    still = "Failing" if report.total.knows_recoveries else "Retried or given up"
    columns = (
        *(Column("Value"), Column("Property"), Column("Messages", "count")),
        *(Column("First-time failures", "share"), Column("Retried", "count")),
        *(Column("Attempts per message", "number"), Column("Recovered", "count")),
        *(Column(OUTCOME_UNKNOWN, "count"), Column("Given up", "count")),
        *(Column(f"{still} after {number}", "share") for number in SHOWN_ATTEMPTS),
    )
    days = report.period.first, report.period.last
    given_up = [column.label for column in columns].index("Given up")
    searches = [
        search_parked(report, int(row[given_up] or 0), days, **{SEARCHED[dimension]: value})
        if dimension in SEARCHED
        else ""
        for (dimension, value), row in zip(shown, rows, strict=True)
    ]
    title, empty = "Retries by group", "No message with an id was retried."
    return Section("groups", title, columns, rows, empty, searches)


def _group_row(name: tuple[str, str], trails: Mapping[Trail, int], known: Mapping[Key, int]) -> Row:
    outcomes: Counter[str] = Counter()
    attempts = 0
    for (first, last, outcome), number in trails.items():
        outcomes[outcome] += number
        # A message that still waits is in the attempt after its last one.
        attempts += number * (last - first + 1 + (outcome == OPEN))
    messages = known.get((*name, "messages"))
    failing = {step.attempt: step.failing for step in kaplan_meier(trails) if step.at_risk}
    return [
        *(name[1], name[0], messages),
        ratio(known.get((*name, "retried"), 0), messages or 0),
        *(outcomes.total(), ratio(attempts, outcomes.total())),
        *(outcomes[one] for one in (RECOVERED, LEFT, EXHAUSTED)),
        *(failing.get(number) for number in SHOWN_ATTEMPTS),
    ]


# Sections in the order of the page.
MAKERS: tuple[Callable[[Report], Section], ...] = (
    *(make_lateness_by_day, make_lateness_map, make_lateness_by_delay, make_lateness_of_probes),
    *(make_error, make_recovery, make_failures_map, make_survival, make_rates, make_groups),
    *(
        make_causes,
        make_by_reason,
        make_dead_letters_map,
        make_by_origin,
        make_ledger,
        make_topologies,
        make_slo,
    ),
)
