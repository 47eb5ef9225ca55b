"""What the Reports page and a report file show of the same figures: a template's context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from analytics import buckets
from analytics.charts import figures as charts
from analytics.results.figures import ENTERED, EXHAUSTED, LEFT, RECOVERED, UNEXPLAINED, Figures
from analytics.results.misses import explain_miss, list_misses
from analytics.results.period import zone_name
from analytics.results.read import Report, Selection, merged
from analytics.results.section import DEFINITIONS, Section, percent, ratio, view_of
from analytics.results.sections import sections
from analytics.results.slo import USUAL_WITHIN_MS, attainment, error_limit
from analytics.results.summary import summarize
from topology.content.text import count_text
from topology.delays import format_ms

# Drawn side by side, and tables without a chart.
CHARTS = ("delays", "survival", "dead_letters")
PAGE_TABLES = ("error", "probes", "recovery", "groups", "causes", "handled")
OF_RETRIES = frozenset({"survival", "causes", "recovery", "groups"})
OF_BROKERS = frozenset({"dead_letters", "handled"})
Sections = dict[str, Section]


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
    within_ms = found.slo.within_ms if found.slo else None
    is_as_long = len(found.days) == len(found.previous)
    before = merged(found.previous.values())
    key_row = key_figures(found.total, before, within_ms=within_ms, compares_counts=is_as_long)
    return {
        "report": found,
        "period": found.period,
        "zone": zone_name(),
        "sentences": [
            *list_misses(found, miss),
            *summarize(
                *(found.period, found.total, found.days, found.suspects),
                error_limit(within_ms),
            ),
        ],
        "miss": miss,
        # A figure without a table is unknown, and no zero.
        "key_figures": [figure for figure in key_row if figure.section in made],
        "budget": _budget(found),
        "main": made["lateness"],
        "charts": [made[key] for key in CHARTS if key in made],
        "tables": [made[key] for key in PAGE_TABLES if key in made],
        "sections": made,
        "figures": figures(made, found),
    }


def shown_sections(found: Report) -> dict[str, Section]:
    """The tables that make sense of what is selected."""
    return {key: one for key, one in sections(found).items() if _is_shown(key, found)}


def _budget(found: Report) -> dict[str, str] | None:
    """Attainment of the range, and what is left of the error budget; None without a target."""
    if found.slo is None:
        return None
    target = (found.slo.percent, found.slo.within_ms)
    now, month = (attainment(figures.late, *target) for figures in (found.total, found.budget))
    if now.share is None or month.budget_left is None or now.burn_rate is None:
        return None
    rates = {"Error budget (28 days)": month.budget_text, "Burn rate": f"{now.burn_rate:.2f}"}
    attained = f"{percent(now.share)} ({now.result})"
    return {"Target": str(found.slo), "Attainment": attained, **rates}


def _is_shown(key: str, found: Report) -> bool:
    if key in OF_RETRIES:
        return found.selection.has_retries
    if key in OF_BROKERS:
        return found.selection == Selection()
    if key == "probes":
        return not found.selection.destination
    return key != "slo" or found.slo is not None


def figures(sections: Sections, found: Report) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show; days without figures are gaps."""
    rows: dict[str, Any] = {key: section.rows for key, section in sections.items()}
    drawn: dict[str, dict[str, Any]] = {}
    slo = found.slo
    target = (f"SLO {slo}", float(slo.within_ms)) if slo else None
    days = len(rows.get("lateness", ()))
    # A single day is a point: its table says more.
    if days > 1:
        measured = {row.label: row for row in _percentiles(rows["lateness"])}
        labels = [day.isoformat() for day in found.period.days]
        by_day = [measured.get(label, charts.Percentiles(label)) for label in labels]
        drawn["lateness"] = charts.over_time(by_day, target)
    if rows.get("delays"):
        drawn["delays"] = charts.by_delay(_percentiles(rows["delays"]))
    if rows.get("survival"):
        drawn["survival"] = charts.survival([(row[0], row[-1]) for row in rows["survival"]])
    if rows.get("dead_letters"):
        arrived = [(day, reason, number) for day, reason, number, *_ in rows["dead_letters"]]
        known = {day.isoformat(): day in found.days for day in found.period.days}
        drawn["dead_letters"] = charts.dead_letters(arrived, known)
    return drawn


def _percentiles(rows: Any) -> list[charts.Percentiles]:
    return [
        charts.Percentiles(label, p50, p95, p99, _describe_all(measured, p50, p95, p99))
        for label, measured, p50, _, p95, p99, *_ in rows
    ]


def _describe_all(measured: int, *each_ms: float | None) -> tuple[str, ...]:
    """Percentiles with the number of deliveries that they are of."""
    of = f"of {count_text(measured)}"
    return tuple("" if ms is None else f"{format_ms(ms)} {of}" for ms in each_ms)


@dataclass(frozen=True)
class KeyFigure:
    """`section` has the numbers; `change` is "" where there is nothing to compare with."""

    label: str
    value: str
    change: str
    section: str
    is_worse: bool = False
    definition: str = ""

    @property
    def view(self) -> str:
        return view_of(self.section)


def key_figures(
    now: Figures, before: Figures, *, within_ms: float | None = None, compares_counts: bool = True
) -> list[KeyFigure]:
    """On time, p99, first-time failures, recovered (what left, where nothing shows that no
    consumer gave up), dead letters, unexplained.

    Shares can be compared whatever the number of days is, counts only with those of as many days.
    """
    limit = within_ms or USUAL_WITHIN_MS
    knows = now.knows_recoveries

    def measure(of: Figures) -> tuple[float | None, ...]:
        done, left, given_up = (of.outcome(one) for one in (RECOVERED, LEFT, EXHAUSTED))
        is_alike = knows == of.knows_recoveries
        return (
            ratio(buckets.within(of.late, limit), of.measured),
            buckets.percentile(of.late, 0.99),
            ratio(of.retried, of.messages),
            ratio(done + left, done + left + given_up) if is_alike else None,
            of.by("dead_letters")["parked"],
            of.fate(UNEXPLAINED),
        )

    entered, measured = count_text(now.fate(ENTERED)), f"{count_text(now.measured)} measured"
    if (error_ms := now.measure_error()) and error_ms >= 1:
        measured += f", error {format_ms(error_ms)}"
    rows = (
        ("on_time", f"within {format_ms(limit)} of due", "lateness", _share),
        ("lateness", f"lateness p99 of {measured}", "lateness", _lateness),
        ("failures", "first-time failures", "recovery", _share),
        (
            ("recovered", "recovered by retry", "survival", _share)
            if knows
            else ("left", "left the retries, outcome unknown", "survival", _share)
        ),
        ("dead_letters", "parked dead letters", "dead_letters", _count),
        ("unexplained", f"unexplained of {entered} scheduled", "ledger", _count),
    )
    found = []
    values = zip(measure(now), measure(before), rows, strict=True)
    for value, earlier, (key, label, section, write) in values:
        text, change, is_more = "–", "", 0
        if value is not None:
            text, change, is_more = write(value, value if earlier is None else earlier)
        if earlier is None or (write is _count and not compares_counts):
            change, is_more = "", 0
        if key == "unexplained" and now.possible_repeats:
            text = f"about {text}"
        is_worse = is_more == (-1 if key in ("on_time", "recovered", "left") else 1)
        found.append(KeyFigure(label, text, change, section, is_worse, DEFINITIONS[key]))
    return found


def _share(now: float, before: float) -> tuple[str, str, int]:
    """The figure, its change, and whether it is more (1) or less (-1) by so much that it counts."""
    points = 100 * (now - before)
    return percent(now), f"{points:+.1f} points", (points >= 0.05) - (points <= -0.05)


def _lateness(now: float, before: float) -> tuple[str, str, int]:
    change = f"{'+' if now >= before else '-'}{format_ms(abs(now - before))}"
    # Less than the width of a bucket is no change.
    return format_ms(now), change, int(now > 1.28 * before and now - before >= 1)


def _count(now: float, before: float) -> tuple[str, str, int]:
    change = f"{'+' if now >= before else '-'}{count_text(abs(int(now - before)))}"
    return count_text(int(now)), change, int(now > before)
