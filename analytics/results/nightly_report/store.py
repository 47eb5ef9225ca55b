"""Stores the nightly report of each new day, so that it can be downloaded and sent as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from threading import Event

from django.db.models import F, OuterRef, Q, Subquery

from analytics.models import NightlyReport, Run
from analytics.models.run import RunState
from analytics.results.nightly_report.document import as_html, report_of
from analytics.results.nightly_report.pdf import (
    NO_CHROMIUM,
    NoChromium,
    PdfError,
    find_chromium,
    print_pdf,
)

# Days that get a report; earlier ones get one only if somebody runs run_nightly for them.
LAST_DAYS = 7
logger = logging.getLogger(__name__)


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
