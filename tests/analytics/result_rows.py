"""What the nightly jobs would leave of a made-up day, for the database of a test."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from analytics import buckets
from analytics.launch import TABLES, Result
from analytics.results.load import replace_day

DELAYS = ((5_000, 2), (3_600_000, 5))
REASONS = ("rejected", "delivery_limit", "maxlen")

GROUPS = (
    *(("queue", "work"), ("reason", "rejected"), ("exception", "TimeoutError")),
    *(("routing key", "order.{n}.created"), ("publisher", "shop"), ("version", "2.0")),
)


def a_result(day: date, groups: Sequence[Mapping[str, str]], **changes: Any) -> Result:
    """The tables of a day with figures of each group, a broker and a topology.

    Of the first group `late_ms` is the lateness between 02:00 and 03:00, `failed` the share of its
    messages that fail.
    """
    tables: dict[str, list[Any]] = {name: [] for name in TABLES}
    for place, group in enumerate(groups):
        _add(tables, day, dict(group), random.Random(place), changes if place == 0 else {})
    broker = {"broker": groups[0]["broker"]}
    tables["dead_letters"] = [
        broker
        | {"hour_at": datetime(day.year, day.month, day.day, 9, tzinfo=UTC).isoformat()}
        | {"queue": "orders-dlq", "origin": "work", "exception_type": "TimeoutError"}
        | {"reason": reason, "kind": kind, "messages": number + day.day % 5}
        for reason, number in zip(REASONS, (40, 12, 5), strict=True)
        for kind in ("arrived", "parked", "replayed")
    ]
    tables["excluded"] = [{"reason": "repeat", "lines": 4}]
    return Result(1_234_567, 3, tables)


def days(all_days: Sequence[date], groups: Sequence[Mapping[str, str]], **changes: Any) -> None:
    """Put these days into the database."""
    for day in all_days:
        replace_day(day, a_result(day, groups, **changes))


def _add(
    tables: dict[str, list[Any]],
    day: date,
    group: dict[str, str],
    chance: random.Random,
    changes: Mapping[str, Any],
) -> None:
    failed = changes.get("failed", 0.02)
    for delay_ms, delay_bucket in DELAYS:
        lateness = {"p50_ms": 1.5, "p90_ms": 8.0, "p95_ms": 12.0, "p99_ms": 25.5, "max_ms": 312.9}
        counts = {"early_share": 0.001, "uncounted": 3, "open": 2, "missing": 1}
        row = group | {"requested_delay_ms": delay_ms, "measured": 12_345}
        tables["accuracy"].append(row | lateness | counts)
        tables["uncounted"].append(
            group | {"requested_delay_ms": delay_ms, "reason": "backlog", "messages": 3}
        )
        for hour in range(24):
            busy = 20 + 60 * (8 <= hour < 18) + chance.randrange(10)
            late_ms = changes.get("late_ms", 20.0) if hour == 2 else 20.0
            at = datetime(day.year, day.month, day.day, hour, tzinfo=UTC).isoformat()
            of_hour = group | {"hour_at": at, "destination": "work"}
            for ms, share in ((0.5, 0.2), (3.0, 0.6), (8.0, 0.15), (late_ms, 0.05)):
                bucket, number = buckets.bucket_of(ms), int(busy * share) + 1
                of_bucket = {"delay_bucket": delay_bucket, "bucket": bucket, "messages": number}
                tables["histogram"].append(of_hour | of_bucket)
            fates = {"delivered": busy, "waiting": 0, "missing": int(hour == 5), "unpaired": 0}
            tables["hours"].append(of_hour | {"entered": busy + int(hour == 5)} | fates)
            if delay_ms == DELAYS[0][0]:
                retried = {"messages": 10 * busy, "retried": int(10 * busy * failed)}
                tables["retries"].append(group | retried)
    for attempt, number in ((1, 400), (2, 150), (3, 60), (4, 55)):
        tables["attempts"].append(group | {"attempt": attempt, "messages": number})
    ways = ((1, "left", 250), (2, "left", 90), (3, "left", 5), (4, "exhausted", 55))
    tables["outcomes"] += [
        group | {"first": 1, "last": last, "outcome": outcome, "messages": number}
        for last, outcome, number in ways
    ]
    tables["recoveries"].append(group | {"bucket": buckets.bucket_of(5003), "messages": 345})
    tables["causes"] += [
        group
        | {"queue": "work", "reason": "rejected", "exception_type": exception, "messages": number}
        | {"routing_key": "order.{n}.created"}
        for exception, number in (("TimeoutError", 500), ("ValueError", 165))
    ]
    tables["failures"] += [
        group
        | {"hour_at": datetime(day.year, day.month, day.day, hour, tzinfo=UTC).isoformat()}
        | {"messages": number, "first_time": number // 2}
        for hour, number in ((2, 600), (14, 65))
    ]
    tables["groups"] += [
        group
        | {"dimension": dimension, "value": value, "messages": number}
        | {"first": 1, "last": last, "outcome": outcome}
        for dimension, value in GROUPS
        for last, outcome, number in ways
    ]
    release = {"publisher": "shop", "version": "2.0", "messages": 9000, "retried": 400}
    tables["releases"].append(group | release)
    tables["losses"] += [
        group | {"queue": "", "destination": "work", "fate": fate, "messages": 1}
        for fate in ("died", "unexplained")
    ]
    due = datetime(day.year, day.month, day.day, 5, 30, tzinfo=UTC).isoformat()
    tables["unexplained"].append(group | {"queue": "", "key": f"lost-{day}", "due_at": due})
