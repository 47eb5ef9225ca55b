"""Nightly reports as messages: one for each receiver that gets reports."""

from __future__ import annotations

import json
from datetime import date, datetime
from functools import cache

from django.db.models import OuterRef, Subquery
from django.db.models.functions import Coalesce

from analytics.models import NightlyReport, Run
from analytics.results.contents import contents
from analytics.results.nightly_report.document import as_json, as_text, report_of
from analytics.results.nightly_report.store import first_day
from analytics.results.period import complete_at
from delayboard.models.alert import AlertMessage, AlertReceiver

# Characters of the column of a title.
TITLE_LENGTH = 200


def write_reports(now: datetime) -> None:
    """Write a message about each report of a whole day, once, from the next report on."""
    computed_at = Run.objects.filter(day=OuterRef("day")).values("finished_at")
    stored = NightlyReport.objects.filter(day__gte=first_day(now), day__lt=now.date())
    stored = stored.annotate(computed_at=Coalesce(Subquery(computed_at), "made_at"))
    # Each report once, however many receive it.
    texts = cache(_make_texts)
    for receiver in AlertReceiver.objects.exclude(reports_from=None):
        known = receiver.messages.exclude(report=None).values("report")
        new = stored.filter(made_at__gt=receiver.reports_from).exclude(pk__in=known)
        for report in new.defer("html", "pdf"):
            if min(report.made_at, report.computed_at) >= complete_at(report.day):
                title, body = texts(report.day)
                message = AlertMessage(
                    receiver=receiver, title=title, body=body, report=report, created_at=now
                )
                # Another worker may write it at the same time.
                AlertMessage.objects.bulk_create([message], ignore_conflicts=True)


def _make_texts(day: date) -> tuple[str, str]:
    """The title and the body."""
    found = report_of(day)
    sentences = contents(found)["sentences"]
    grave = f": {sentences[0].headline.rstrip('.')}" if sentences and not found.is_empty else ""
    return f"Delayboard report {day}{grave}"[:TITLE_LENGTH], as_text(found)


def list_files(report: NightlyReport) -> list[tuple[str, bytes, str]]:
    """The files of a mail: name, content and type."""
    name = f"delayboard-report-{report.day}"
    files = [(f"{name}.html", report.html.encode(), "text/html")]
    if report.pdf is not None:
        files.append((f"{name}.pdf", bytes(report.pdf), "application/pdf"))
    return files


def write_json(report: NightlyReport) -> bytes:
    """What `manage.py report --json` prints."""
    return json.dumps(as_json(report_of(report.day))).encode()
