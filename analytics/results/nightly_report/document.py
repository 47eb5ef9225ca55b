"""The report of a day as a file of its own, as a text and as JSON, from the page's own figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from analytics.charts import svg
from analytics.models import Run
from analytics.models.run import RunState
from analytics.results.contents import contents
from analytics.results.period import CUSTOM, Period, zone_name
from analytics.results.read import Report, report
from analytics.results.section import Section
from topology.content.text import isolate_names
from topology.models import Broker

STYLES = ("tokens", "elements", "layout", "parts", "tables", "reports")
# What a person reads in a terminal or a mail; the file has every table.
IN_TEXT = ("topologies", "delays", "groups", "causes", "handled", "ledger")


def report_of(day: date) -> Report:
    """The figures of one day for all brokers."""
    return report(Period(CUSTOM, day, day), Broker.objects.all())


def as_html(found: Report) -> str:
    """One file without scripts that loads nothing."""
    context = contents(found)
    sections = context["sections"]
    context["figures"] = {
        # analytics.charts.svg escapes every text that it writes.
        key: SafeString(svg.draw(figure, sections[key].title))
        for key, figure in context["figures"].items()
    }
    styles = SafeString("".join(map(_style, STYLES)))
    context |= {"styles": styles, "print_style": SafeString(_style("print"))}
    context |= {"made_at": datetime.now(UTC), "run": _run(found)}
    return render_to_string("analytics/report_file.html", context)


def as_json(found: Report) -> dict[str, Any]:
    """Sentences, key figures and tables with raw values."""
    made, run = contents(found), _run(found)
    state = run and {
        "state": RunState(run.state).value,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        **{name: getattr(run, name) for name in ("lines", "malformed", "error")},
    }
    return {
        "day": found.period.first.isoformat(),
        "time_zone_of_hours": zone_name(),
        "generated": bool(found.generated_days),
        "run": state,
        "summary": [
            {"headline": one.headline, "text": one.text, "topology": one.topology}
            for one in made["sentences"]
        ],
        "key_figures": [
            {"label": one.label, "value": one.value, "change": one.change, "worse": one.is_worse}
            for one in made["key_figures"]
        ],
        "tables": {
            key: {
                "title": section.title,
                "definition": section.definition,
                "columns": [{"label": one.label, "kind": one.kind} for one in section.columns],
                "rows": [list(row) for row in section.rows],
            }
            for key, section in made["sections"].items()
        },
    }


def as_text(found: Report) -> str:
    """For a terminal: sentences, key figures and the shorter tables, without control characters."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Report) -> Iterator[str]:
    zone = "UTC" if zone_name() == "UTC" else f"UTC day, hours in {zone_name()}"
    yield f"Delayboard report of {found.period.first} ({zone})"
    run = _run(found)
    if run and run.error:
        yield isolate_names(" ".join(run.error.split()))
    if found.generated_days and not (run and run.is_generated):
        yield "These figures are computed from events that the demo generated."
    if run and run.state == RunState.DONE and run.is_of_unfinished_day:
        yield "The day was not over when Delayboard computed these figures."
    if found.is_empty:
        yield "No figures for this day."
        return
    made = contents(found)
    yield from ("", "Summary")
    sentences = [f"{one.headline} {one.text}" for one in made["sentences"]]
    for sentence in sentences or ["No rule found an unusual change."]:
        yield f"- {isolate_names(sentence)}"
    yield from ("", "Key figures (change since the day before)")
    yield from _aligned([[one.label, one.value, one.change] for one in made["key_figures"]], (1, 2))
    for key in IN_TEXT:
        if section := made["sections"].get(key):
            yield from _table(section)


def _table(section: Section) -> Iterator[str]:
    yield from ("", section.title)
    if not section.rows:
        yield section.empty
        return
    head = [column.label for column in section.columns]
    rows = [[isolate_names(text) for text, _ in row] for row in section.cells]
    numbers = [place for place, column in enumerate(section.columns) if column.kind != "text"]
    yield from _aligned([head, *rows], numbers)


def _aligned(rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> Iterator[str]:
    widths = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = (
            text.rjust(width) if place in numbers else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(texts)}".rstrip()


def _run(found: Report) -> Run | None:
    return Run.objects.filter(day=found.period.first).first()


def _style(name: str) -> str:
    path = finders.find(f"delayboard/{name}.css")
    assert isinstance(path, str)
    return Path(path).read_text()
