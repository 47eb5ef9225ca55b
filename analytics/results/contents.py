"""What the Reports page and a report file show of the same figures: a template's context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analytics.charts import lateness, retries
from analytics.models import Slo
from analytics.results.headline import key_figures
from analytics.results.misses import explain_miss, list_misses
from analytics.results.period import zone_name
from analytics.results.read import Report, Selection, merged
from analytics.results.section import Section, percent
from analytics.results.sections import sections
from analytics.results.slo import attainment
from analytics.results.summary import summarize
from topology.delays import format_ms

# Drawn side by side, and tables without a chart.
CHARTS = ("delays", "survival", "dead_letters")
TABLES = ("probes", "recovery", "groups", "causes", "handled")
OF_RETRIES = frozenset({"survival", "causes", "recovery", "groups"})
OF_BROKERS = frozenset({"dead_letters", "handled"})


def contents(
    found: Report, parked_url: str = "", day_url: str = "", messages_url: str = ""
) -> dict[str, Any]:
    """Sentences, key figures, tables and charts of a report.

    With the page of a broker's parked messages the tables link to them, with that of recorded
    messages to these, and with the page itself their days link to the report of one day.
    """
    shown = shown_sections(found)
    made = {
        key: replace(one, parked_url=parked_url, day_url=day_url, messages_url=messages_url)
        for key, one in shown.items()
    }
    miss = explain_miss(found)
    within_ms, is_as_long = (
        found.slo and found.slo.within_ms,
        len(found.days) == len(found.previous),
    )
    before = merged(found.previous.values())
    key_row = key_figures(found.total, before, within_ms=within_ms, compares_counts=is_as_long)
    return {
        "report": found,
        "period": found.period,
        "zone": zone_name(),
        "sentences": [
            *list_misses(found, miss),
            *summarize(found.period, found.total, found.days, found.suspects),
        ],
        "miss": miss,
        # A figure without a table is unknown, and no zero.
        "key_figures": [figure for figure in key_row if figure.section in made],
        "budget": _budget(found),
        "main": made["lateness"],
        "charts": [made[key] for key in CHARTS if key in made],
        "tables": [made[key] for key in TABLES if key in made],
        "sections": made,
        "figures": _draw_figures(made, found.slo),
    }


def shown_sections(found: Report) -> dict[str, Section]:
    """The tables that make sense of what is selected."""
    return {key: one for key, one in sections(found).items() if _is_shown(key, found)}


def _draw_figures(sections: dict[str, Section], slo: Slo | None) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show, by the key of its table."""
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


def _budget(found: Report) -> dict[str, str] | None:
    """Attainment of the range, and what is left of the error budget; None without a target."""
    if found.slo is None:
        return None
    target = (found.slo.percent, found.slo.within_ms)
    now, month = (attainment(figures.late, *target) for figures in (found.total, found.budget))
    if now.share is None or month.budget_left is None or now.burn_rate is None:
        return None
    return {
        "Target": str(found.slo),
        "Attainment": f"{percent(now.share)} ({now.result})",
        "Error budget (28 days)": month.budget_text,
        "Burn rate": f"{now.burn_rate:.2f}",
    }


def _is_shown(key: str, found: Report) -> bool:
    if key in OF_RETRIES:
        return found.selection.has_retries
    if key in OF_BROKERS:
        return found.selection == Selection()
    if key == "probes":
        return not found.selection.destination
    return key != "slo" or found.slo is not None


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
