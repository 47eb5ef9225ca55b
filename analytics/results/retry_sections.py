"""The tables of a report about retries and failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from analytics import buckets
from analytics.results.figures import (
    DEAD_LETTER_GROUPS,
    EXHAUSTED,
    GROUP_MESSAGES,
    GROUPS,
    OPEN,
    RECOVERED,
    Key,
    Trail,
    kaplan_meier,
)
from analytics.results.read import Report
from analytics.results.section import DAY, Column, Row, Section, bucket_of, ratio, search_parked

MOST_CAUSES = 20
# Values shown of each kind of group, and the attempts after which the share still failing is shown.
MOST_OF_GROUP, SHOWN_ATTEMPTS = 8, (1, 3)
DIMENSIONS = ("queue", "reason", "exception", "routing key", "publisher", "version")
SEARCHED = {"queue": "died", "reason": "reason", "exception": "exception"}


def make_recovery(report: Report) -> Section:
    rows: list[Row] = []
    for day, figures in report.days.items():
        done, exhausted = figures.outcome(RECOVERED), figures.outcome(EXHAUSTED)
        tries = figures.total("attempts")
        if done or exhausted or tries or figures.messages:
            times = (buckets.percentile(figures.recoveries, share) for share in (0.5, 0.99))
            messages, retried = figures.messages, figures.retried
            attempts = (messages, retried, ratio(retried, messages), ratio(tries, retried))
            ends = (done, exhausted, ratio(done, done + exhausted))
            rows.append([day.isoformat(), *attempts, *ends, *times])
    columns = (
        *(Column(DAY), Column("Messages", "count"), Column("Retried", "count")),
        *(Column("First-time failures", "share"), Column("Attempts per message", "number")),
        *(Column("Recovered", "count"), Column("Exhausted", "count")),
        *(Column("Share recovered", "share"), Column("Recovery time p50", "ms")),
        Column("Recovery time p99", "ms"),
    )
    return Section("recovery", "Retries by day", columns, rows, "No message was recorded.")


def make_survival(report: Report) -> Section:
    rows: list[Row] = [
        [
            *(step.attempt, step.at_risk, step.recovered, step.exhausted, step.censored),
            *(ratio(step.recovered, step.at_risk), step.failing),
        ]
        for step in report.total.survival()
    ]
    names = ("Attempt", "Ended", "Recovered", "Exhausted", "Waiting")
    counts = (Column(name, "count") for name in names)
    columns = (*counts, Column("Share recovered", "share"), Column("Still failing", "share"))
    title = "Messages still failing after each attempt"
    empty = "No message with an id was retried."
    found = [bucket_of("retried", row[1], attempt=row[0]) for row in rows]
    return Section("survival", title, columns, rows, empty, buckets=found)


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
    columns = (
        *(Column("Value"), Column("Property"), Column("Messages", "count")),
        *(Column("First-time failures", "share"), Column("Retried", "count")),
        *(Column("Attempts per message", "number"), Column("Recovered", "count")),
        Column("Exhausted", "count"),
        *(Column(f"Failing after {number}", "share") for number in SHOWN_ATTEMPTS),
    )
    days = report.period.first, report.period.last
    exhausted = [column.label for column in columns].index("Exhausted")
    searches = [
        search_parked(report, int(row[exhausted] or 0), days, **{SEARCHED[dimension]: value})
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
        *(outcomes[one] for one in (RECOVERED, EXHAUSTED)),
        *(failing.get(number) for number in SHOWN_ATTEMPTS),
    ]
