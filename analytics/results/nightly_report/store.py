"""Stores the nightly report of each new day, so that it can be downloaded and sent as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery

from analytics.models import Delivery, NightlyReport, Run, Subscriber
from analytics.models.run import RunState
from analytics.results.nightly_report.document import as_html, report_of
from analytics.results.nightly_report.pdf import (
    NO_CHROMIUM,
    NoChromium,
    PdfError,
    find_chromium,
    print_pdf,
)
from analytics.results.period import complete_at

# Days that get a report; earlier ones get one only if somebody runs run_nightly for them.
LAST_DAYS = 7
logger = logging.getLogger(__name__)


def store_report(day: date, *, alive: Callable[[], None] = lambda: None) -> NightlyReport:
    """Make the files of a day and put them in the place of earlier ones.

    The first report of a whole day, and not of long ago, is noted to be sent to all subscribers.
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
    now = datetime.now(UTC)
    values = {"made_at": now, "html": html, "pdf": pdf, "pdf_error": problem}
    with transaction.atomic():
        earlier = NightlyReport.objects.filter(day=day).values_list("made_at", flat=True).first()
        computed = Run.objects.filter(day=day).values_list("finished_at", flat=True).first()
        stored, _ = NightlyReport.objects.update_or_create(day=day, defaults=values)
        is_first = earlier is None or earlier < complete_at(day)
        is_whole = computed is None or computed >= complete_at(day)
        if is_first and is_whole and _first_day(now) <= day < now.date():
            # Another process may store it at the same time.
            Delivery.objects.bulk_create(
                (
                    Delivery(report=stored, subscriber=one, next_at=now)
                    for one in Subscriber.objects.all()
                ),
                ignore_conflicts=True,
            )
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
        day__range=(_first_day(now), (now - timedelta(days=1)).date()),
        state__in=(RunState.DONE, RunState.NO_DATA),
    ).annotate(made_at=Subquery(made_at))
    is_new = Q(made_at=None) | Q(made_at__lt=F("finished_at"))
    return list(runs.filter(is_new).order_by("day").values_list("day", flat=True))


def _first_day(now: datetime) -> date:
    return (now - timedelta(days=LAST_DAYS)).date()
