"""The tables of a report -> its charts by the key of their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analytics.charts import heat_map, lateness, retries
from analytics.charts.figure import days_axis
from analytics.models import Slo
from analytics.results.hours import zone_name
from analytics.results.sections.retries import WEEKDAYS
from analytics.results.sections.section import Section, percent
from topology.content.text import count_of
from topology.delays import format_ms

Sections = dict[str, Section]


def figures(sections: Sections, slo: Slo | None) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show."""
    rows: dict[str, Any] = {key: section.rows for key, section in sections.items()}
    drawn: dict[str, dict[str, Any]] = {}
    target = (f"SLO {slo}", float(slo.within_ms)) if slo else None
    days = len(rows.get("lateness", ()))
    for key, axis in (("lateness", days_axis(days)), ("late_hours", lateness.HOURS)):
        # A single day is a point: its hours and its table say more.
        if rows.get(key) and (key, days) != ("lateness", 1):
            shown = _percentiles(rows[key])
            if key == "late_hours":
                shown = _with_gaps(shown)
            drawn[key] = lateness.over_time(shown, target, axis)
    if rows.get("delays"):
        drawn["delays"] = lateness.by_delay(_percentiles(rows["delays"]))
    if rows.get("distribution"):
        drawn["distribution"] = lateness.distribution(
            [(messages, _label(low)) for low, _, messages in rows["distribution"]]
        )
    if rows.get("survival"):
        drawn["survival"] = retries.survival([(row[0], row[-1]) for row in rows["survival"]])
    if rows.get("failures"):
        drawn["failures"] = retries.failures(
            [(hour, retried, messages) for hour, messages, retried, _ in rows["failures"]]
        )
    if rows.get("dead_letters"):
        arrived = [(day, reason, number) for day, reason, number, *_ in rows["dead_letters"]]
        known = {row[0] for row in rows["ledger"][:-1]} | {day for day, _, _ in arrived}
        drawn["dead_letters"] = retries.dead_letters(arrived, sorted(known))
    if rows.get("throughput"):
        drawn["throughput"] = retries.by_hour(
            [(hour, per_day, waiting) for hour, _, per_day, waiting in rows["throughput"]]
        )
    return drawn


def heat(section: Section) -> heat_map.HeatMap | None:
    """The map of weekdays and hours; None of nothing."""
    rows: Any = section.rows
    values = {
        (weekday, int(hour[:2])): (
            retried / messages,
            f"{weekday} {hour} {zone_name()}: {percent(retried / messages)} of "
            f"{count_of(messages, 'message')}",
            link,
        )
        for (weekday, hour, messages, retried, _), link in zip(rows, section.links, strict=True)
    }
    return heat_map.draw(WEEKDAYS, values, percent) if values else None


def _percentiles(rows: Any) -> list[lateness.Percentiles]:
    return [
        lateness.Percentiles(label, p50, p95, p99, (format_ms(p50), format_ms(p95), format_ms(p99)))
        for label, _, p50, _, p95, p99, *_ in rows
    ]


def _with_gaps(hours: Sequence[lateness.Percentiles]) -> list[lateness.Percentiles]:
    """All hours of a day, those without a delivery without values."""
    known = {row.label: row for row in hours}
    minutes = hours[0].label[2:]
    labels = [f"{hour:02}{minutes}" for hour in range(24)]
    return [known.get(label, lateness.no_delivery(label)) for label in labels]


def _label(low: float | None) -> str:
    if low is None:
        return "early"
    return "on time" if low < 0 else format_ms(low)
