"""The nightly report: a file of its own, a text, JSON and PDF, stored for each new day.

Its figures are those of the page. The PDF is printed by a Chromium, if this machine has one.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from django.contrib.staticfiles import finders
from django.db.models import F, OuterRef, Q, Subquery
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from analytics.models import NightlyReport, Run
from analytics.models.run import RunState
from analytics.results.annotations import make_record
from analytics.results.contents import contents
from analytics.results.period import CUSTOM, Period, zone_name
from analytics.results.read import Report, report
from analytics.results.section import Section
from topology.content.text import isolate_names
from topology.models import Broker

STYLES = ("tokens", "elements", "frame", "components")
# Sections in a terminal or a mail; the file has every table.
IN_TEXT = ("topologies", "delays", "groups", "causes", "handled", "ledger")

UNUSUAL_COLUMNS = (
    *("broker", "topology", "kind", "first_hour", "last_hour", "hour", "observed", "sample"),
    *("usual_low", "usual_high", "compared", "limit_ms", "score"),
)
NAMES = (
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
SECONDS = 60.0
NO_CHROMIUM = (
    "No PDF: Chromium is not installed. Install it on the machine of the worker, which then adds "
    "the PDF."
)

# Days that get a report; earlier ones get one only if somebody runs run_nightly for them.
LAST_DAYS = 7
logger = logging.getLogger(__name__)


def report_of(day: date) -> Report:
    """The figures of one day for all brokers."""
    return report(Period(CUSTOM, day, day), Broker.objects.all())


def as_html(found: Report) -> str:
    """One file without scripts that loads nothing."""
    context = contents(found)
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
        "generated": bool(found.generated_days),
        "run": state,
        "is_empty": found.is_empty,
        "time_zone_of_hours": zone_name(),
        "summary": [
            {"headline": one.headline, "text": one.text, "topology": one.topology}
            for one in made["sentences"]
        ],
        "days_recorded": found.days_recorded,
        "unusual": [
            {name: getattr(row, name) for name in UNUSUAL_COLUMNS} for row in found.unusual
        ],
        "annotations": [
            make_record(one)
            | {"at": one.at.isoformat(), "until_at": one.until_at and one.until_at.isoformat()}
            for one in found.annotations
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
    """The report for a terminal: sentences, key figures and the shorter tables, without control
    characters.
    """
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


class PdfError(Exception):
    """The PDF could not be made; the message says why."""


class NoChromium(PdfError):
    """This machine has no Chromium, which nothing else needs."""


def find_chromium() -> str | None:
    """The first of the usual names on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def print_pdf(html: str, *, alive: Callable[[], None] = lambda: None) -> bytes:
    """The file, which loads nothing, as PDF. `alive` is called meanwhile. Raises PdfError."""
    program = find_chromium()
    if program is None:
        raise NoChromium(NO_CHROMIUM)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        # Nobody can open anything on paper.
        source.write_text(html.replace("<details>", "<details open>"))
        arguments = [
            *("--headless", "--disable-gpu", "--no-pdf-header-footer", "--no-first-run"),
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            f"--print-to-pdf={target}",
        ]
        # Chromium's sandbox refuses root, and what it prints is our own file.
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        _print([program, *arguments, source.as_uri()], folder, alive)
        if not target.exists():
            raise PdfError("No PDF: Chromium wrote no file. Run it by hand to see why.")
        return target.read_bytes()


def _print(command: list[str], folder: Path, alive: Callable[[], None]) -> None:
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise PdfError(f"No PDF: Chromium did not start ({error}).") from error
    try:
        until = monotonic() + SECONDS
        while monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                child.wait(1)
                return
            alive()
        raise PdfError(f"No PDF: Chromium took longer than {SECONDS:.0f} s.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def store_due(stop: Event, *, alive: Callable[[], None] = lambda: None) -> None:
    """Store the reports of new days."""
    for day in days_to_store(datetime.now(UTC)):
        if stop.is_set():
            return
        store_report(day, alive=alive)


def store_report(day: date, *, alive: Callable[[], None] = lambda: None) -> NightlyReport:
    """Make the files of a day and put them in the place of earlier ones.

    `alive` is called at least once a second.
    """
    html = as_html(report_of(day))
    pdf, problem = None, ""
    try:
        pdf = print_pdf(html, alive=alive)
    except NoChromium as error:
        # The page says it beside the report.
        problem = str(error)
    except PdfError as error:
        problem = str(error)
        # What fails for one day fails for the next: to log it once is enough.
        if not NightlyReport.objects.filter(pdf_error=problem).exists():
            logger.warning("The report of %s: %s", day, problem)
    values = {"made_at": datetime.now(UTC), "html": html, "pdf": pdf, "pdf_error": problem}
    stored, _ = NightlyReport.objects.update_or_create(day=day, defaults=values)
    return stored


def days_to_store(now: datetime) -> list[date]:
    """The last days that were computed since their report was stored, oldest first.

    And those of which there is no PDF because Chromium was not installed then.
    """
    stored = NightlyReport.objects.filter(day=OuterRef("day"))
    if find_chromium():
        stored = stored.exclude(pdf_error=NO_CHROMIUM)
    made_at = stored.values("made_at")
    runs = Run.objects.filter(
        day__range=(first_day(now), (now - timedelta(days=1)).date()),
        state__in=(RunState.DONE, RunState.NO_DATA),
    ).annotate(made_at=Subquery(made_at))
    is_new = Q(made_at=None) | Q(made_at__lt=F("finished_at"))
    return list(runs.filter(is_new).order_by("day").values_list("day", flat=True))


def first_day(now: datetime) -> date:
    """Earlier days have a report only if somebody runs run_nightly for them."""
    return (now - timedelta(days=LAST_DAYS)).date()
