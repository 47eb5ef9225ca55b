"""The rows of a report -> the values that the charts draw -> figures by their page's id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from analytics.charts import lateness, retries
from analytics.results import Bucket, Report
from topology.delays import format_delay


def figures(report: Report) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show."""
    drawn = {}
    if percentiles := _percentiles(report):
        drawn["percentiles"] = lateness.percentiles(percentiles)
    if report.histogram:
        drawn["spread"] = lateness.spread(_spread(report))
    if report.retries:
        drawn["shares"] = retries.shares(
            [retries.Share(row.topology, row.messages, row.retried) for row in report.retries]
        )
    if report.attempts:
        drawn["survival"] = retries.survival(_survival(report))
    if report.deaths:
        drawn["deaths"] = retries.deaths(
            [retries.Deaths(row.queue, row.reason, row.deaths) for row in report.deaths]
        )
    return drawn


def bucket_label(bucket: Bucket) -> str:
    """Such as "1–2 ms", "on time", "early" or "over 13h"; milliseconds below a second."""
    if bucket.from_ms is None:
        return "early"
    if bucket.from_ms < 0:
        return "on time"
    if bucket.to_ms is None:
        return f"over {_span(bucket.from_ms)}"
    if bucket.to_ms < 1000:
        return f"{bucket.from_ms:.0f}–{bucket.to_ms:.0f} ms"
    return f"{_span(bucket.from_ms)}–{_span(bucket.to_ms)}"


def _span(ms: float) -> str:
    return format_delay(timedelta(milliseconds=ms))


def _label(place: str, delay: timedelta) -> str:
    return f"{place} · {format_delay(delay)}"


def _percentiles(report: Report) -> list[lateness.Percentiles]:
    return [
        lateness.Percentiles(
            _label(row.place, row.requested_delay),
            row.p50_ms or 0.0,
            row.p95_ms or 0.0,
            row.p99_ms or 0.0,
            row.max_ms or 0.0,
        )
        for row in report.accuracy
        if row.measured
    ]


def _spread(report: Report) -> list[lateness.Spread]:
    """Every delay gets every bucket that any has, so that the axis is in order."""
    in_order = sorted(
        report.histogram, key=lambda bucket: -1.0 if bucket.from_ms is None else bucket.from_ms
    )
    places = dict.fromkeys(bucket_label(bucket) for bucket in in_order)
    counts: dict[str, dict[str, int]] = {}
    for bucket in report.histogram:
        label = _label(bucket.place, bucket.requested_delay)
        counts.setdefault(label, dict.fromkeys(places, 0))[bucket_label(bucket)] += bucket.messages
    return [lateness.Spread(label, list(buckets.items())) for label, buckets in counts.items()]


def _survival(report: Report) -> list[retries.Survival]:
    attempts: dict[str, list[tuple[int, int]]] = {}
    for row in sorted(report.attempts, key=lambda row: row.attempt):
        attempts.setdefault(row.topology, []).append((row.attempt, row.messages))
    return [retries.Survival(label, pairs) for label, pairs in attempts.items()]
