"""What the Reports page and a report file show of the same figures: a template's context."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeAlias
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.utils.safestring import SafeString

from analytics import buckets
from analytics.charts import figures as charts
from analytics.charts import svg
from analytics.charts.heat import MOST_WITH_TEXT, HeatMap, heat_map
from analytics.results.annotations import Mark
from analytics.results.figures import ENTERED, EXHAUSTED, LEFT, RECOVERED, UNEXPLAINED, Figures
from analytics.results.misses import explain_miss, list_misses
from analytics.results.period import local_hours, zone_name
from analytics.results.read import Report, Selection, merged
from analytics.results.section import (
    DEFINITIONS,
    Section,
    bucket_of,
    percent,
    ratio,
    view_of,
)
from analytics.results.sections import ONCE, hour_label, sections
from analytics.results.slo import USUAL_WITHIN_MS, attainment, error_limit
from analytics.results.summary import describe_unusual, explain_unknown, summarize
from topology.content.text import count_text
from topology.delays import format_ms

# Sections whose charts are as wide as the page (WIDE) or side by side (NARROW), and tables without
# a chart (PAGE_TABLES).
WIDE = (
    *("lateness", "lateness_map", "recovery", "failures_map"),
    *("dead_letters", "dead_letters_map"),
)
HEAT_MAPS = frozenset({"lateness_map", "failures_map", "dead_letters_map"})
NARROW = ("delays", "survival", "rates")
PAGE_TABLES = ("error", "probes", "groups", "causes", "handled")
OF_RETRIES = frozenset({"survival", "causes", "recovery", "groups", "rates", "failures_map"})
OF_BROKERS = frozenset({"dead_letters", "dead_letters_map", "handled"})
# Most days of a range in which each label has its month, and the day before which the first of a
# longer range has it; most bars, most events.
ROOM_FOR_MONTH, LAST_WITH_MONTH, MOST_BARS, MOST_EVENTS = 14, 28, 12, 5
Sections = dict[str, Section]
LateLink: TypeAlias = Callable[[str, float, int | None], str]


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
    made = _drawn(made, found)
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
            *describe_unusual(found),
            *list_misses(found, miss),
            *summarize(
                *(found.period, found.total, found.days, found.suspects),
                error_limit(within_ms),
            ),
            *explain_unknown(found),
        ],
        "miss": miss,
        # A figure without a table is unknown, and no zero.
        "key_figures": [figure for figure in key_row if figure.section in made],
        "has_earlier": any(figure.change for figure in key_row),
        "budget": _budget(found),
        "main": made["lateness"],
        "wide": [made[key] for key in WIDE if key in made],
        "narrow": [made[key] for key in NARROW if key in made],
        "tables": [made[key] for key in PAGE_TABLES if key in made],
        "sections": made,
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


def _drawn(made: Sections, found: Report) -> Sections:
    """The tables with the charts and heat maps of those that have one."""
    events = events_of(found)
    charts_of = figures(made, found)
    shown = {}
    for key, section in made.items():
        figure = charts_of.get(key, {})
        if figure and key in WIDE:
            figure = charts.mark_events(figure, events)
        # analytics.charts.svg escapes every text that it writes.
        drawn = SafeString(svg.draw(figure, section.title)) if figure else ""
        heat = _heat_map(section, found, events) if key in HEAT_MAPS else None
        shown[key] = replace(section, figure=figure, drawn=drawn, heat=heat)
    return shown


def figures(made: Sections, found: Report) -> dict[str, dict[str, Any]]:
    """A figure for every chart that has something to show; days without figures are gaps."""
    rows: dict[str, Any] = {key: section.rows for key, section in made.items()}
    drawn: dict[str, dict[str, Any]] = {}
    slo = found.slo
    target = (f"SLO {slo}", float(slo.within_ms)) if slo else None
    labels = [day.isoformat() for day in found.period.days]
    if rows.get("lateness"):
        measured: dict[str, Counter[int]]
        if found.period.length > 1:
            measured = {
                day.isoformat(): Counter(figures.late) for day, figures in found.days.items()
            }
            across = None
        else:
            (day,) = found.days
            # An hour that the clocks repeat is one place, as in the links.
            of_day = found.days[day]
            measured = {hour_label(one): Counter() for one in local_hours(day)}
            for hour, begin in enumerate(local_hours(day)):
                measured[hour_label(begin)].update(of_day.within_group("late_by_hour", hour))
            labels, across = list(measured), charts.hours_axis(zone_name())
        link = _link_late(made["lateness"], found)
        points = [_percentiles(label, measured.get(label, Counter()), link) for label in labels]
        drawn["lateness"] = charts.over_time(points, target, across)
    if rows.get("delays"):
        link = _link_late(made["lateness"], found)
        by_delay = [
            _percentiles(label, found.total.within_group("late_by_delay", group), link, group)
            for group, label in enumerate(buckets.DELAY_LABELS)
        ]
        drawn["delays"] = charts.by_delay([one for one in by_delay if any(one.texts)])
    if rows.get("survival"):
        drawn["survival"] = charts.survival([(row[0], row[-1]) for row in rows["survival"]])
    if rows.get("recovery") and found.period.length > 1:
        rates = {row[0]: (row[3], _rate_text(row[2], row[1])) for row in rows["recovery"]}
        by_day = [(label, *rates.get(label, (None, ""))) for label in labels]
        drawn["recovery"] = charts.rate_by_day(by_day)
    if rows.get("rates"):
        by_queue = [
            (queue, rate, _rate_text(retried, messages))
            for queue, messages, retried, rate in rows["rates"][:MOST_BARS]
            if rate is not None
        ]
        drawn["rates"] = charts.rate_by_queue(by_queue)
    if rows.get("dead_letters"):
        arrived = [(day, reason, number) for day, reason, number, *_ in rows["dead_letters"]]
        known = {day.isoformat(): day in found.days for day in found.period.days}
        drawn["dead_letters"] = charts.dead_letters(arrived, known)
    return drawn


def events_of(found: Report) -> dict[str, str]:
    """Place across (a day, or an hour of one day) -> its deploys, changes, replays and outages."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    begin = datetime.combine(found.period.first, time(), UTC)
    for mark in found.annotations:
        at = max(mark.at, begin).astimezone(UTC)
        if found.period.length == 1:
            hour = local_hours(at.date())[at.hour]
            texts[hour_label(hour)].append(_event_text(mark, hour.date()))
            continue
        # What lasts until midnight is not of the next day.
        last = max(at, (mark.until_at or at).astimezone(UTC) - timedelta(microseconds=1)).date()
        for day in found.period.days:
            if at.date() <= day <= last:
                texts[day.isoformat()].append(_event_text(mark, day))
    for some in texts.values():
        if len(some) > MOST_EVENTS:
            some[MOST_EVENTS:] = [f"and {len(some) - MOST_EVENTS} more"]
    return {place: "\n".join(some) for place, some in texts.items()}


def _event_text(mark: Mark, day: date) -> str:
    """With its begin and its end in the reports' zone, and their dates where they are others."""
    zone = ZoneInfo(zone_name())
    moments = [one.astimezone(zone) for one in (mark.at, mark.until_at) if one is not None]
    times = [f"{one:%H:%M}" if one.date() == day else f"{one:%-d %B %H:%M}" for one in moments]
    return f"{'–'.join(times)} {mark.kind}: {mark.text}"


def _rate_text(retried: int, messages: int) -> str:
    share = percent(ratio(retried, messages) or 0)
    return f"{share}, {count_text(retried)} of {count_text(messages)}"


def _percentiles(
    label: str, late: buckets.Counts, link: LateLink, delay: int | None = None
) -> charts.Percentiles:
    """Percentiles with the number of deliveries that they are of, and links to the latest ones."""
    p50, p95, p99 = each = [buckets.percentile(late, share) for share in (0.5, 0.95, 0.99)]
    of = f"of {count_text(sum(late.values()))}"
    texts = tuple("" if ms is None else f"{format_ms(ms)} {of}" for ms in each)
    links = tuple("" if ms is None else link(label, ms, delay) for ms in each)
    return charts.Percentiles(label, p50, p95, p99, texts, links)


def _link_late(section: Section, found: Report) -> LateLink:
    """What leads from a point to the messages that were at least so late, or to its day."""

    def link(label: str, ms: float, delay: int | None) -> str:
        query: dict[str, str | int] = {"late_from": buckets.bucket_of(ms)}
        if delay is not None:
            query["delay"] = delay
        elif found.period.length == 1:
            query["hour"] = label
        else:
            query |= ONCE | {"from": label, "to": label}
        if section.messages_url:
            return f"{section.messages_url}{bucket_of('measured', 1, **query)}"
        return _day(section, label) if "from" in query else ""

    return link


def _day(section: Section, label: str) -> str:
    return f"{section.day_url}from={label}&to={label}" if section.day_url else ""


def _heat_map(section: Section, found: Report, events: Mapping[str, str]) -> HeatMap | None:
    """Days across; of one day its hours. Without stored messages a cell leads to its day."""
    if not section.rows:
        return None
    is_one = found.period.length == 1
    by_label = dict(zip((row[0] for row in section.rows), _cells(section), strict=True))
    heads = [column.label for column in section.columns[1:]]
    if is_one and section.key != "lateness_map":
        columns = [(head, head[:2]) for head in heads]
        lines = [(str(label), cells) for label, cells in by_label.items()]
        return heat_map("Hour", columns, lines, events)
    if is_one:
        columns = [(str(label), str(label)[:2]) for label in by_label]
    else:
        columns = [(day.isoformat(), _short_day(day, found)) for day in found.period.days]
    gap: list[tuple[int | None, str]] = [(None, "")] * len(heads)
    by_column = [by_label.get(place, gap) for place, _ in columns]
    lines = [(head, [cells[at] for cells in by_column]) for at, head in enumerate(heads)]
    if section.key == "lateness_map":
        lines.reverse()
    corner = "Lateness" if section.key == "lateness_map" else "Hour"
    return heat_map(corner, columns, lines, events)


def _short_day(day: date, found: Report) -> str:
    """With the month where there is room, and where it begins."""
    is_first = day == found.period.first and day.day < LAST_WITH_MONTH
    if found.period.length <= ROOM_FOR_MONTH or day.day == 1 or is_first:
        return f"{day:%-d %b}"
    # The 30th has no place beside the first of the next month.
    return (
        f"{day.day}"
        if found.period.length <= MOST_WITH_TEXT or day.day in (5, 10, 15, 20, 25)
        else ""
    )


def _cells(section: Section) -> Iterator[list[tuple[int | None, str]]]:
    """The numbers of each row, and where they lead to."""
    for (label, *numbers), queries in zip(section.rows, section.cells_of, strict=True):
        cells: list[tuple[int | None, str]] = []
        for number, query in zip(numbers, queries, strict=True):
            url = _day(section, str(label)) if ":" not in str(label) and number else ""
            if query and section.key == "dead_letters_map" and section.parked_url:
                url = f"{section.parked_url}?{urlencode({'q': query})}"
            elif query and section.key != "dead_letters_map" and section.messages_url:
                url = f"{section.messages_url}{query}"
            cells.append((None if number is None else int(number), url))
        yield cells


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
    """The key figures: on time, p99, first-time failures, recovered (left, where it is not known
    whether consumers gave up), dead letters, unexplained.

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
