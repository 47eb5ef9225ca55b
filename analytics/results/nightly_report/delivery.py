"""Stores the nightly report of each new day, sends it to its subscribers, repeats what failed."""

from __future__ import annotations

import json
import logging
import smtplib
import urllib.request
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from http.client import HTTPException
from threading import Event
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import URLValidator, validate_email
from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery

from analytics.models import Channel, Delivery, NightlyReport, Run, Subscriber
from analytics.models.run import RunState
from analytics.results.contents import contents
from analytics.results.nightly_report.document import as_html, as_json, as_text, report_of
from analytics.results.nightly_report.pdf import (
    NO_CHROMIUM,
    NoChromium,
    PdfError,
    find_chromium,
    print_pdf,
)
from analytics.results.period import complete_at
from topology.broker.errors import BrokerError
from topology.models.secrets import seal_secret

TIMEOUT_SECONDS = 8.0
# The pause before each next attempt; after the last one a user must request the next.
PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240, 720))
# A worker that was killed while it sent is followed by another attempt.
CLAIM = timedelta(minutes=5)
# The path of a webhook from this length on is shown by its last characters: these distinguish the
# addresses of one host, and reveal no token.
LONG_PATH, SHOWN_OF_PATH = 20, 4
NO_MAIL = "EMAIL_HOST is not set. Set it in the environment of the worker."
# Of days before there is a report only if somebody runs run_nightly for them.
LAST_DAYS = 7
logger = logging.getLogger(__name__)


class AddressRefused(Exception):
    """Not an address of this kind; the message is a sentence."""


class NotSent(Exception):
    """No report can be sent; the message is a sentence."""


def subscribe(channel: str, address: str) -> Subscriber:
    """Add who gets the reports from the next one on. Raises AddressRefused."""
    address = address.strip()
    is_mail = channel == Channel.EMAIL
    check: Callable[[str], None] = validate_email if is_mail else URLValidator(["http", "https"])
    try:
        check(address)
    except ValidationError as error:
        kind = "a mail address" if is_mail else "an HTTP address"
        raise AddressRefused(f"“{address[:60]}” is not {kind}.") from error
    channel = Channel.EMAIL if is_mail else Channel.WEBHOOK
    name = address
    if not is_mail:
        parts = urlsplit(address)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        end = f" …{path[-SHOWN_OF_PATH:]}" if len(path) >= LONG_PATH else ""
        name = f"{parts.hostname}{end}"
    if any(one.address == address for one in Subscriber.objects.filter(channel=channel)):
        raise AddressRefused(f"{name} is a subscriber already.")
    return Subscriber.objects.create(
        channel=channel, name=name[:254], encrypted_address=seal_secret(address)
    )


def send_latest(subscriber: Subscriber) -> Delivery:
    """Let the worker send the latest report next, also one that was sent. Raises NotSent."""
    if subscriber.channel == Channel.EMAIL and not settings.EMAIL_HOST:
        raise NotSent(f"Nothing is sent. {NO_MAIL}")
    report = NightlyReport.objects.defer("html", "pdf").first()
    if report is None:
        raise NotSent("Nothing is sent, because no report is stored yet.")
    again = {"next_at": datetime.now(UTC), "sent_at": None, "attempts": 0, "error": ""}
    delivery, _ = Delivery.objects.update_or_create(again, report=report, subscriber=subscriber)
    return delivery


def deliver_due(stop: Event, *, alive: Callable[[], None] = lambda: None) -> None:
    """Store the reports of new days, then send what is due once."""
    for day in days_to_store(datetime.now(UTC)):
        if stop.is_set():
            return
        store_report(day, alive=alive)
    due = Delivery.objects.filter(next_at__lte=datetime.now(UTC), sent_at=None)
    for delivery in due.select_related("report", "subscriber"):
        if stop.is_set():
            return
        alive()
        send(delivery)


def send(delivery: Delivery) -> bool:
    """Try once, and note how it ended; False where another worker is at it or it failed."""
    claimed = Delivery.objects.filter(pk=delivery.pk, next_at=delivery.next_at, sent_at=None)
    attempts = delivery.attempts + 1
    if not claimed.update(next_at=datetime.now(UTC) + CLAIM, attempts=attempts):
        return False
    row = Delivery.objects.filter(pk=delivery.pk)
    try:
        _send(delivery)
    except (smtplib.SMTPException, HTTPException, OSError, ValueError, BrokerError) as error:
        sentence = str(error) or type(error).__name__
        pause = PAUSES[attempts - 1] if attempts <= len(PAUSES) else None
        next_at = datetime.now(UTC) + pause if pause else None
        row.update(error=sentence[:1000], next_at=next_at)
        report, name = delivery.report, delivery.subscriber.name
        logger.error("The %s for %s was not sent: %s", report, name, sentence)
        return False
    row.update(sent_at=datetime.now(UTC), next_at=None, error="")
    return True


def _send(delivery: Delivery) -> None:
    if delivery.subscriber.channel != Channel.EMAIL:
        found = report_of(delivery.report.day)
        # `text` is what chat systems show.
        _post(delivery.subscriber.address, {"text": as_text(found), "report": as_json(found)})
        return
    if not settings.EMAIL_HOST:
        raise ValueError(NO_MAIL)
    _mail_of(delivery).send()


def _mail_of(delivery: Delivery) -> EmailMessage:
    report, found = delivery.report, report_of(delivery.report.day)
    sentences = contents(found)["sentences"]
    grave = f": {sentences[0].headline.rstrip('.')}" if sentences and not found.is_empty else ""
    subject = f"Delayboard report {report.day}{grave}"
    message = EmailMessage(subject, as_text(found), to=[delivery.subscriber.address])
    name = f"delayboard-report-{report.day}"
    message.attach(f"{name}.html", report.html, "text/html")
    if report.pdf is not None:
        message.attach(f"{name}.pdf", bytes(report.pdf), "application/pdf")
    return message


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The report goes to the address that an administrator entered, and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(address: str, content: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "Delayboard"}
    body = json.dumps(content).encode()
    request = urllib.request.Request(address, body, headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read(1024)
    except HTTPError as error:
        why = ", and Delayboard follows no redirect" if 300 <= error.code < 400 else ""
        raise ValueError(f"The webhook answered with status {error.code}{why}.") from error
    except TimeoutError as error:
        raise OSError(f"The webhook did not answer within {TIMEOUT_SECONDS:.0f} s.") from error
    except URLError as error:
        raise OSError(f"The webhook was not reached: {error.reason}.") from error


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
            subscribers = Subscriber.objects.all()
            rows = (Delivery(report=stored, subscriber=one, next_at=now) for one in subscribers)
            Delivery.objects.bulk_create(rows, ignore_conflicts=True)
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
