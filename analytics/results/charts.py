"""The tables of a report -> its charts by the key of their table."""

from __future__ import annotations

from typing import Any

from analytics.charts import lateness, retries
from analytics.models import Slo
from analytics.results.section import Section
from topology.delays import format_ms

Sections = dict[str, Section]


def figures(sections: Sections, slo: Slo | None) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show."""
    rows: dict[str, Any] = {key: section.rows for key, section in sections.items()}
    drawn: dict[str, dict[str, Any]] = {}
    target = (f"SLO {slo}", float(slo.within_ms)) if slo else None
    days = len(rows.get("lateness", ()))
    # A single day is a point: its table says more.
    if days > 1:
        by_day = _percentiles(rows["lateness"])
        drawn["lateness"] = lateness.over_time(by_day, target)
    if rows.get("delays"):
        drawn["delays"] = lateness.by_delay(_percentiles(rows["delays"]))
    if rows.get("survival"):
        drawn["survival"] = retries.survival([(row[0], row[-1]) for row in rows["survival"]])
    if rows.get("dead_letters"):
        arrived = [(day, reason, number) for day, reason, number, *_ in rows["dead_letters"]]
        known = {row[0] for row in rows["ledger"][:-1]} | {day for day, _, _ in arrived}
        drawn["dead_letters"] = retries.dead_letters(arrived, sorted(known))
    return drawn


def _percentiles(rows: Any) -> list[lateness.Percentiles]:
    return [
        lateness.Percentiles(label, p50, p95, p99, (format_ms(p50), format_ms(p95), format_ms(p99)))
        for label, _, p50, _, p95, p99, *_ in rows
    ]
